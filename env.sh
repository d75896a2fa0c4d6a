# The environment of the checkout that this file lies in: its interpreter, and a compile cache of its own.
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(dirname "$checkout")/.cache-$(basename "$checkout")
export PATH=$checkout/.venv/bin:$PATH VIRTUAL_ENV=$checkout/.venv
export BLOCKWRIGHT_CACHE=$cache BLOCKWRIGHT_CACHE_DIR=$cache
