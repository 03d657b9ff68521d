#!/usr/bin/env bash
# Installs missing dependencies: deps.sh [make] [postgres] [cc] [node] [python] [chromium] [pgbouncer] [prometheus] [ship]
#
#   make      GNU make
#   postgres  the server's programs and pgbench; no cluster is created or needed
#   cc        a C compiler, for Go's race detector
#   node      Node.js 20 or newer with npm, for endpoints/typescript
#   python    Python 3, for examples/python
#   pgbouncer PgBouncer, for internal/systest
#   prometheus Prometheus and promtool, for internal/systest
#   ship      podman with runc, amtool, systemd-analyze, man, nginx and HAProxy, for make soak
#   chromium  Chromium or Chrome, for tests of the dashboard; if it is not in PATH, set CHROMIUM or CHROME
#
# Installed programs are not changed, and no service has to run. Without apt-get, prints what to install and fails.
set -euo pipefail

# bin_with prints the first directory with all the programs. Keep the list as in internal/embedded.
bin_with() {
    local dir program
    local dirs=()
    shopt -s nullglob
    dirs=(
        /usr/lib/postgresql/*/bin /usr/lib/postgresql*/bin /usr/pgsql-*/bin /usr/libexec/postgresql*
        /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin
        /home/linuxbrew/.linuxbrew/opt/postgresql*/bin /Applications/Postgres.app/Contents/Versions/*/bin
        /opt/local/lib/postgresql*/bin /usr/local/pgsql/bin
    )
    shopt -u nullglob
    IFS=: read -ra path <<<"$PATH"
    for dir in "${path[@]}" ${dirs[@]+"${dirs[@]}"}; do
        for program in "$@"; do
            [[ -x $dir/$program ]] || continue 2
        done
        echo "$dir"
        return 0
    done
    return 1
}

have() {
    case $1 in
        make) command -v make >/dev/null ;;
        postgres) bin_with initdb postgres pg_ctl pgbench >/dev/null ;;
        cc) [[ -n ${CC:-} ]] || command -v gcc >/dev/null || command -v clang >/dev/null ;;
        node) command -v npm >/dev/null && node_major=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null) &&
            [[ $node_major -ge 20 ]] ;;
        python) command -v python3 >/dev/null ;;
        chromium) [[ -n ${CHROMIUM:-}${CHROME:-} ]] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
            command -v google-chrome >/dev/null || command -v google-chrome-stable >/dev/null || command -v chrome >/dev/null ;;
        pgbouncer) command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] ;;
        prometheus) command -v prometheus >/dev/null && command -v promtool >/dev/null ;;
        ship) command -v podman >/dev/null && command -v runc >/dev/null && command -v amtool >/dev/null &&
            [[ -x /usr/sbin/nginx && -x /usr/sbin/haproxy ]] &&
            command -v systemd-analyze >/dev/null && command -v man >/dev/null ;;
        *) echo "deps.sh: unknown dependency '$1'; use make, postgres, cc, node, python, chromium, pgbouncer, prometheus or ship" >&2 && exit 2 ;;
    esac
}

# may_install reports whether apt-get can run as root. Without a terminal, sudo must not need a password.
may_install() {
    command -v apt-get >/dev/null || return 1
    [[ $EUID -ne 0 ]] || return 0
    command -v sudo >/dev/null || return 1
    [[ -t 0 ]] || sudo -n true 2>/dev/null
}

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

explain() {
    echo "Missing: $*." >&2
    if [[ " $* " == *" postgres "* ]]; then
        cat >&2 <<'END'
Install PostgreSQL 14 or newer, the server with pgbench; it need not run:
  Debian, Ubuntu   sudo apt-get install postgresql
  Fedora, RHEL     sudo dnf install postgresql-server postgresql-contrib
  Alpine           sudo apk add postgresql postgresql-contrib
  macOS            brew install postgresql@17
initdb, postgres, pg_ctl and pgbench must be in PATH or in the package's usual directory.
END
    fi
    if [[ " $* " == *" cc "* ]]; then
        echo "Install a C compiler, gcc or clang, with the headers of the C library." >&2
    fi
    if [[ " $* " == *" node "* ]]; then
        cat >&2 <<'END'
Install Node.js 20 or newer with npm:
  Debian, Ubuntu   sudo apt-get install nodejs npm
  Fedora, RHEL     sudo dnf install nodejs npm
  Alpine           sudo apk add nodejs npm
  macOS            brew install node
  elsewhere        https://nodejs.org/
END
    fi
    if [[ " $* " == *" python "* ]]; then
        echo "Install Python 3; it must be in PATH as python3." >&2
    fi
    if [[ " $* " == *" chromium "* ]]; then
        cat >&2 <<'END'
Install Chromium or Chrome:
  Debian           sudo apt-get install chromium
  Ubuntu           sudo snap install chromium (the apt package only installs the snap)
  Fedora           sudo dnf install chromium
  Alpine           sudo apk add chromium
  macOS            brew install --cask chromium
  elsewhere        https://www.google.com/chrome/
It must be in PATH as chromium or google-chrome, or set CHROMIUM=FILE.
END
    fi
    if [[ " $* " == *" pgbouncer "* ]]; then
        cat >&2 <<'END'
Install PgBouncer; it need not run:
  Debian, Ubuntu   sudo apt-get install pgbouncer
  Fedora           sudo dnf install pgbouncer
  Alpine           sudo apk add pgbouncer
  macOS            brew install pgbouncer
END
    fi
    if [[ " $* " == *" prometheus "* ]]; then
        cat >&2 <<'END'
Install Prometheus, with promtool; it need not run:
  Debian, Ubuntu   sudo apt-get install prometheus
  Alpine           sudo apk add prometheus
  macOS            brew install prometheus
  elsewhere        https://prometheus.io/download/
Both programs must be in PATH.
END
    fi
    if [[ " $* " == *" ship "* ]]; then
        echo "Install podman with runc, Alertmanager's amtool, systemd-analyze, man, nginx and HAProxy:" >&2
        echo "  Debian, Ubuntu   sudo apt-get install podman runc prometheus-alertmanager systemd man-db nginx haproxy" >&2
    fi
    if [[ " $* " == *" make "* ]]; then
        echo "Install GNU make." >&2
    fi
    exit 1
}

# install_debian installs packages non-interactively. A temporary setting keeps the postgresql package from creating a
# cluster and starting it on port 5432.
install_debian() {
    local conf=/etc/postgresql-common/createcluster.d/tranche-deps.conf
    local patient=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)
    echo "Installing: $*" >&2
    as_root apt-get "${patient[@]}" -qq update </dev/null >&2
    as_root mkdir -p "${conf%/*}"
    echo 'create_main_cluster = false' | as_root tee "$conf" >/dev/null
    # shellcheck disable=SC2064  # expand the path now
    trap "as_root rm -f '$conf'" EXIT
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get "${patient[@]}" -qq -y install --no-install-recommends "$@" </dev/null >&2
}

missing=()
for want in "$@"; do
    have "$want" || missing+=("$want")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

may_install || explain "${missing[@]}"

packages=()
for want in "${missing[@]}"; do
    case $want in
        make) packages+=(make) ;;
        postgres) packages+=(postgresql) ;;
        cc) packages+=(gcc libc6-dev) ;;
        chromium) packages+=(chromium) ;;
        python) packages+=(python3) ;;
        pgbouncer) packages+=(pgbouncer) ;;
        prometheus) packages+=(prometheus) ;;
        ship) packages+=(podman runc prometheus-alertmanager systemd man-db nginx haproxy) ;;
        # Node.js from elsewhere may include npm and conflict with Debian's.
        node) packages+=(nodejs) && { command -v npm >/dev/null || packages+=(npm); } ;;
    esac
done
install_debian "${packages[@]}"

for want in "${missing[@]}"; do
    have "$want" || explain "$want"
done
