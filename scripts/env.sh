# Sourced by the other scripts: makes the project's own environment once, and again when pyproject.toml changes.
#
#   make_env FOLDER EXTRAS      afterwards FOLDER/bin/python has the project (editable) with those extras
#
# torch: a machine without a GPU gets the CPU build (200 MB instead of several GB). A machine with a GPU gets whatever
# pip chooses, and an installed torch is never replaced: drivers differ. PHI3_MESH_TORCH="torch==X" overrides.

CPU_TORCH="torch==2.13.0"
CPU_INDEX="https://download.pytorch.org/whl/cpu"

say() { printf '\033[2m·\033[0m %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer with venv is needed (Debian and Ubuntu: apt install python3-venv); set PYTHON=/path/to/it"
}

has_gpu() {
    { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU; } || [ -e /dev/kfd ]
}

install_torch() {
    local python=$1
    "$python" -c 'import torch' 2>/dev/null && return
    if [ -n "${PHI3_MESH_TORCH:-}" ]; then
        "$python" -m pip install -qq "$PHI3_MESH_TORCH"
    elif has_gpu || [ "$(uname -s)" != Linux ]; then
        "$python" -m pip install -qq torch
    # pip may know a CPU wheel already (a wheel folder, a mirror); only otherwise is PyTorch's own index asked.
    elif "$python" -m pip install -qq --dry-run --no-deps --report - "$CPU_TORCH" 2>/dev/null | grep -q '"version": "[^"]*+cpu"'; then
        "$python" -m pip install -qq "$CPU_TORCH"
    else
        "$python" -m pip install -qq "$CPU_TORCH" --extra-index-url "$CPU_INDEX"
    fi
}

# The first line of .made-from says from what, the second which extras are there: one script's environment serves another.
make_env() {
    local folder=$1 wanted=$2 stamp="$1/.made-from" source have="" extras python
    source="$(cksum <pyproject.toml) $(cksum <scripts/env.sh)"
    if [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$source" ]; then
        have="$(sed -n 2p "$stamp")"
    fi
    extras="$(printf '%s,%s' "$have" "$wanted" | tr , '\n' | sed '/^$/d' | sort -u | paste -sd, -)"
    [ "$extras" = "$have" ] && return
    python=$(find_python)
    say "making $folder with $("$python" --version) [$extras] (once; a few minutes on a slow line)"
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    python="$folder/bin/python"
    "$python" -m pip install -qq --disable-pip-version-check --upgrade pip
    case ",$extras," in *,node,*) say "installing torch"; install_torch "$python" ;; esac
    say "installing phi3-mesh[$extras]"
    "$python" -m pip install -qq --disable-pip-version-check -e ".[$extras]"
    printf '%s\n%s\n' "$source" "$extras" >"$stamp"
}
