export PATH=/work/wt/lead/.venv/bin:$PATH VIRTUAL_ENV=/work/wt/lead/.venv BLOCKWRIGHT_CACHE=/work/wt/.cache-lead
export BLOCKWRIGHT_CACHE_DIR=/work/wt/.cache-lead
