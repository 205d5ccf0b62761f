# For scenario scripts in dom0: reporting, guests, the end.

stage() {
    echo "$*" >/run/stage
    echo "LAB stage $*"
}

# fact KEY TEXT
fact() {
    echo "LAB $*" >>/results/dom0.facts
    echo "LAB $*"
}

# block NAME FILE: reports a file line by line.
block() {
    echo "LAB= $1" >>/results/dom0.facts
    sed "s|^|LAB+ $1 |" "$2" >>/results/dom0.facts
}

uptime_now() { cut -d' ' -f1 /proc/uptime; }

# since START: seconds from an uptime until now
since() { awk -v a="$1" -v b="$(uptime_now)" 'BEGIN { printf "%.2f", b - a }'; }

# threads NAME: where each thread of our daemons is, and in what system call, to
# /results/threads-NAME.txt. What hangs, hangs there.
threads() {
    for program in vgpud vgpu-dm; do
        for pid in $(pidof "$program"); do
            for task in "/proc/$pid/task/"*; do
                echo "== $program $pid thread ${task##*/} $(cat "$task/comm")"
                echo "wchan $(cat "$task/wchan")"
                echo "syscall $(cat "$task/syscall")"
                cat "$task/stack"
            done
        done
    done >"/results/threads-$1.txt" 2>&1
}

# finish ok|REASON: brings the logs back and ends the run.
finish() {
    # At a prompt there is nothing to end.
    [ "$LAB_SCENARIO" = shell ] && echo "lab: $*" && return 1
    [ "$1" = ok ] || fact failed "$*"
    [ "$1" = ok ] || threads end
    # Whatever went wrong may have left any of these hanging.
    timeout 20 xl list >/results/xl-list.txt 2>&1
    timeout 20 xl dmesg >/results/xen-dmesg.txt 2>&1
    fact xen-log-lines "$(wc -l </results/xen-dmesg.txt)"
    grep -E 'emulation failed|domain_crash|Domain [0-9]+ .*crashed' /results/xen-dmesg.txt >/results/xen-complaints.txt
    block xen-complaints /results/xen-complaints.txt
    timeout 20 xenstore-ls -f >/results/xenstore.txt 2>&1
    if [ "$1" != ok ] && [ "$LAB_DEVICE" = 1 ]; then
        timeout 20 vgpuctl list >/results/vgpuctl-list.txt 2>&1
        for id in $(xenstore-list /local/domain); do
            [ "$id" = 0 ] || timeout 20 vgpuctl inspect "$id" --json >"/results/inspect-$id-end.json" 2>&1
        done
    fi
    dmesg >/results/dom0-dmesg.txt
    ps axww -o pid,ppid,rss,stat,args >/results/ps.txt
    for log in /var/log/xen/console/guest-*.log; do
        [ -f "$log" ] && cp "$log" /results/
    done
    cp /var/log/xen/*.log /results/ 2>/dev/null
    tar -cf "$LAB_RESULTS_DISK" -C /results .
    sync
    echo "LAB finished $*"
    # QEMU is ended from outside when it has read that line.
    while :; do sleep 1000; done
}

# give_up_after SECONDS: in the background, ends the run while there is still
# time to bring the logs back.
give_up_after() {
    sleep "$1"
    finish "timed out in dom0 after $1 s in stage: $(cat /run/stage)"
}

# install_programs: ours ahead of Debian's on PATH, xl-vgpu as xl.
install_programs() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    mkdir -p /opt/vgpu
    mv /lab/bin /opt/vgpu/bin
    ln -s xl-vgpu /opt/vgpu/bin/xl
    export PATH="/opt/vgpu/bin:$PATH"
}

# make_stubs: an image for device models' domains, and a vgpud that makes them.
make_stubs() {
    stage "the stub image is made"
    start=$(uptime_now)
    vgpu-stub-image --kernel /lab/stub/vmlinuz --modules /lab/stub/modules --dm /opt/vgpu/bin/vgpu-dm-static >/results/stub-image.txt 2>&1 ||
        { finish "vgpu-stub-image: $(tail -n 1 /results/stub-image.txt)"; return 1; }
    fact stub-image-seconds "$(since "$start")"
    fact stub-image-kib "$(du -k /var/lib/vgpu/stub/initramfs.gz | cut -f1)"
    mkdir -p /etc/vgpu
    # The domain beside its guest: one waits while the other works.
    printf 'stub = true\nstub_cpus = "1"\n' >/etc/vgpu/vgpud.toml
    # Their consoles on ours, whatever their number; xenconsoled makes the files.
    for id in 1 2 3 4 5 6 7 8 9; do
        log="/var/log/xen/console/guest-vgpu-dm-$id.log"
        : >"$log"
        tail -n +1 -F "$log" 2>/dev/null | sed -u "s/^/[stub$id] /" &
    done
}

# stubs_end: what is left of device models' domains when their guests are gone.
stubs_end() {
    tries=0
    while xl list | grep -qE 'vgpu-dm-|\(null\)' && [ $tries -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    fact stubs-left "$(xl list | grep -cE 'vgpu-dm-|\(null\)')"
    fact stub-nodes-left "$(xenstore-ls /local/domain | grep -c device-model-vgpu)"
}

# start_vgpud: our daemon, until it takes connections; sets $vgpud_pid.
start_vgpud() {
    [ "$LAB_STUB" = 1 ] && [ ! -d /var/lib/vgpu/stub ] && { make_stubs || return 1; }
    # shellcheck disable=SC2086 # an option and its value
    RUST_LOG=${RUST_LOG:-info} vgpud --gpu "${LAB_GPU:-bdw}" ${LAB_SHADOW:+--shadow $LAB_SHADOW} >>/results/vgpud.log 2>&1 &
    vgpud_pid=$!
    tries=0
    until timeout 5 vgpuctl list >/dev/null 2>&1; do
        tries=$((tries + 1))
        kill -0 "$vgpud_pid" 2>/dev/null ||
            { finish "vgpud ended: $(tail -n 1 /results/vgpud.log)"; return 1; }
        [ $tries -gt 100 ] && { finish "vgpud does not answer after 20 s"; return 1; }
        sleep 0.2
    done
}

# vgpu_line [KEY=VALUE]: the line of a guest's config that gives it our device,
# if the run has one.
vgpu_line() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    # bdw is the default, and so is left out.
    gpu=
    [ "$LAB_GPU" = bdw ] || gpu=",gpu=$LAB_GPU"
    echo "vgpu = [\"slot=10$gpu${1:+,$1}\"]"
}

# stop_vgpud: as a service manager stops it.
stop_vgpud() {
    kill "$vgpud_pid"
    wait "$vgpud_pid"
    fact vgpud-exit $?
}

guest_log() { echo "/var/log/xen/console/guest-$1.log"; }

# What guest_config makes a guest boot: bookworm's kernel, or that in
# /lab/boot-KERNEL.
guest_boot=/lab/boot

# guest_config NAME DEVICE_MODEL_ARGS [LINE...]: writes /lab/NAME.cfg; the
# arguments in xl's list syntax, without brackets.
guest_config() {
    name=$1
    args=$2
    shift 2
    if [ -f "$guest_boot/device-model-args" ]; then
        args="$(cat "$guest_boot/device-model-args")${args:+, $args}"
    fi
    {
        cat "$guest_boot/config"
        cat <<CONFIG
name = "$name"
type = "hvm"
vcpus = 1
cpus = "1"
# Not xvda to xvdd: libxl would have QEMU emulate them as IDE, never read-only.
disk = ["phy:$LAB_GUEST_DISK,xvde,r", "phy:$LAB_GUESTLOAD_DISK,xvdf,r"]
vif = []
vga = "none"
serial = "null"
tsc_mode = "native"
on_poweroff = "destroy"
on_reboot = "destroy"
on_crash = "destroy"
CONFIG
        [ -n "$args" ] && echo "device_model_args_hvm = [$args]"
        for line in "$@"; do echo "$line"; done
    } >"/lab/$name.cfg"
}

# guest_create NAME [OPTION]: xl create, and its console on ours from then on.
guest_create() {
    start=$(uptime_now)
    echo "$start" >"/run/start-$1"
    # shellcheck disable=SC2086 # an option, or none
    xl create $2 "/lab/$1.cfg" >"/results/xl-create-$1.txt" 2>&1 || {
        # The first complaint is the cause, the rest is its clean-up.
        reason=$(grep -m 1 -i error "/results/xl-create-$1.txt" || tail -n 1 "/results/xl-create-$1.txt")
        finish "xl create $1: $reason"
        return 1
    }
    fact "xl-create-seconds/$1" "$(since "$start")"
    xl domid "$1" >"/run/domid-$1"
    fact "domid/$1" "$(cat "/run/domid-$1")"
    tail -n +1 -F "$(guest_log "$1")" 2>/dev/null | sed -u "s/^/[$1] /" &
}

# By xenstore, since xl takes a while to start.
guest_alive() { xenstore-exists "/local/domain/$(cat "/run/domid-$1")"; }

# guest_wait NAME PATTERN SECONDS WHAT: until its console shows PATTERN.
guest_wait() {
    deadline=$(($(cut -d. -f1 /proc/uptime) + $3))
    until grep -q "$2" "$(guest_log "$1")" 2>/dev/null; do
        guest_alive "$1" || { finish "guest $1 ended before $4"; return 1; }
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] ||
            { finish "guest $1: no $4 within $3 s"; return 1; }
        sleep 0.3
    done
}

# guest_ready NAME SECONDS: until its init takes commands.
guest_ready() {
    guest_wait "$1" '^LAB ready' "$2" "boot"
    fact "guest-boot-seconds/$1" "$(since "$(cat "/run/start-$1")")"
}

# ask TAG ARGUMENT...: what vgpuctl answers, as the block TAG; how it ended and
# what it complained of, as TAG with -status and -said.
ask() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    tag=$1
    shift
    file="/results/$(echo "$tag" | tr / -)"
    timeout 30 vgpuctl "$@" >"$file.txt" 2>"$file.err"
    status=$?
    fact "$tag-status" $status
    block "$tag" "$file.txt"
    block "$tag-said" "$file.err"
    [ $status = 0 ] || threads "$(echo "$tag" | tr / -)"
}

# inspect NAME TAG: a guest's device as vgpuctl sees it.
inspect() { ask "inspect/$1-$2" inspect "$(cat "/run/domid-$1")" --json; }

# look NAME TAG: how our daemons see a guest, what the engines do and did last, to
# /results/TAG-*.
look() {
    timeout 20 vgpuctl inspect "$(cat "/run/domid-$1")" --json >"/results/$2-inspect.json" 2>&1
    timeout 20 vgpuctl inspect --json >"/results/$2-host.json" 2>&1
    timeout 20 vgpuctl trace -n 2000 >"/results/$2-trace.txt" 2>&1
}

# look_after NAME SECONDS TAG: the same in the background, SECONDS from now, and
# where each thread is, for what should have ended by then; $looker is its process.
look_after() {
    [ "$LAB_DEVICE" = 1 ] || { looker=; return 0; }
    (
        sleep "$2"
        look "$1" "$3"
        threads "$3"
    ) &
    looker=$!
}

# look_now_and_then NAME SECONDS TAG: the same every SECONDS, of which the last
# ten are kept, to work on something; $looker is its process.
look_now_and_then() {
    [ "$LAB_DEVICE" = 1 ] || { looker=; return 0; }
    (
        turn=0
        while :; do
            sleep "$2"
            look "$1" "$3$turn"
            turn=$(((turn + 1) % 10))
        done
    ) &
    looker=$!
}

# look_no_more: what was to be seen is over.
look_no_more() { [ -z "$looker" ] || kill "$looker" 2>/dev/null; }

sequence=0
# guest_start NAME COMMAND...: tells a guest to run a script; sets $sequence.
guest_start() {
    name=$1
    shift
    sequence=$((sequence + 1))
    tty=$(xenstore-read "/local/domain/$(cat "/run/domid-$name")/console/tty")
    echo "$sequence $*" >"$tty"
}

# guest_do NAME SECONDS COMMAND...: the same, until it has ended.
guest_do() {
    name=$1
    limit=$2
    shift 2
    guest_start "$name" "$@"
    guest_wait "$name" "^LAB end $sequence " "$limit" "end of: $*"
}

# guest_gone NAME SECONDS: until Xen knows the domain no more, not even as a
# zombie that some mapping of its memory keeps.
guest_gone() {
    tries=$(($2 * 2))
    while [ "$tries" -gt 0 ]; do
        if ! guest_alive "$1" && ! xl list | grep -q '(null)'; then
            fact "guest-gone/$1" yes
            return 0
        fi
        tries=$((tries - 1))
        sleep 0.5
    done
    fact "guest-gone/$1" no
}

# daemons_end: whether vgpud lives on, and no device model, when all guests
# are gone.
daemons_end() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    tries=0
    while pidof vgpu-dm >/dev/null && [ $tries -lt 20 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    fact vgpu-dm-left "$(pidof vgpu-dm | wc -w)"
    kill -0 "$vgpud_pid" 2>/dev/null && fact vgpud-alive yes || fact vgpud-alive no
}
