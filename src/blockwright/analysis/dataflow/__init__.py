"""Dataflow: which accesses run, in which order, and whether they touch the same memory.

- `contexts`, `executions`: where and when a block runs; `accesses`: what it surely accesses.
- `order`: which of two accesses runs first; `visible_writes`: writes that a read may see.
- `overlap`, `elements`: same memory, proved for boxes and evaluated for elements and bytes.
- `dependences`, `block_kinds`, `dataflow`: proofs for schedule legality, cached by `memo`.
- `independence`, `independent_values`, `conditional_cover`: proofs about instances and boxes.
- `counterexample`: numeric evaluation for the validator.
"""
