# Sourced by every script here: goes to the repository's root and makes `.venv` there.
# `ensure_environment gateway|dev` installs that lock, every file checked by its hash, and does
# nothing when `.venv` already holds it.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Whatever environment the caller's shell is in, these scripts use this repository's own.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
outer_path=":$PATH:"
outer_path="${outer_path//":$PWD/.venv/bin:"/:}"
export PATH="$PWD/.venv/bin:$PATH"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# `step COMMAND...` runs one check and goes on when it fails; `all_passed` then ends the script.
# `beside COMMAND...` starts one next to the steps that follow; `all_passed` shows what it said.
failed=()
beside_pids=()
beside_names=()

step() {
    say "$*"
    "$@" || failed+=("$*")
}

beside() {
    [[ -n "${said_beside:-}" ]] || said_beside="$(mktemp -d)"
    trap end_those_beside EXIT
    "$@" >"$said_beside/${#beside_pids[@]}" 2>&1 &
    beside_pids+=("$!")
    beside_names+=("$*")
}

end_those_beside() {
    kill "${beside_pids[@]}" 2>/dev/null || true
    rm -rf "$said_beside"
}

all_passed() {
    local number
    for number in "${!beside_pids[@]}"; do
        wait "${beside_pids[number]}" || failed+=("${beside_names[number]}")
        say "${beside_names[number]}"
        cat "$said_beside/$number"
    done
    beside_pids=()
    ((${#failed[@]} == 0)) || die "failed: $(printf '%s; ' "${failed[@]}")"
    say "all passed in $SECONDS s"
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# A Python of the right age that is not `.venv`'s own. PYTHON=... names one.
find_python() {
    local PATH="$outer_path" name
    local names="${PYTHON:-python3 python3.13 python3.12 python3.11}"
    for name in $names; do
        if new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    die "needs Python 3.11 or newer, found none as: $names. Install one, or say where it is:" \
        "PYTHON=/path/to/python3.12 $0"
}

make_environment() {
    local python
    new_enough .venv/bin/python && return
    python="$(find_python)"
    say "making .venv with $python ($("$python" --version))"
    "$python" -m venv --clear .venv ||
        die "$python cannot make virtual environments (on Debian: apt-get install python3-venv)"
}

# The name of a lock and the digest of all that an installed environment depends on, its place too.
record_of() {
    printf '%s ' "$1"
    { pwd && cat "requirements/$1.txt" pyproject.toml inferd/__init__.py; } |
        sha256sum | cut -d ' ' -f 1
}

is_installed() {
    local recorded
    [[ -x .venv/bin/inferd ]] && recorded="$(cat .venv/installed 2>/dev/null)" || return 1
    # The development lock holds all of the gateway's pins.
    [[ "$recorded" == "$(record_of "$1")" || "$recorded" == "$(record_of dev)" ]]
}

install_lock() {
    local started="$SECONDS"
    say "installing requirements/$1.txt into .venv (half a minute the first time)"
    rm -f .venv/installed
    .venv/bin/python -m pip install --quiet --quiet --require-hashes --requirement "requirements/$1.txt"
    .venv/bin/python -m pip install --quiet --quiet --no-build-isolation --no-deps --editable .
    record_of "$1" >.venv/installed
    say "installed in $((SECONDS - started)) s"
}

ensure_environment() {
    local guard
    is_installed "$1" && return
    # Scripts may be started at the same time: the second one finds the work done.
    exec {guard}>.venv.lock
    flock "$guard"
    make_environment
    is_installed "$1" || install_lock "$1"
    exec {guard}>&-
}
