# For scenario scripts in dom0: reporting, guests, the end.

stage() { echo "LAB stage $*"; }

# fact KEY TEXT
fact() {
    echo "LAB $*" >>/results/dom0.facts
    echo "LAB $*"
}

# block NAME FILE: reports a file line by line.
block() { sed "s|^|LAB+ $1 |" "$2" >>/results/dom0.facts; }

uptime_now() { cut -d' ' -f1 /proc/uptime; }

# since START: seconds from an uptime until now
since() { awk -v a="$1" -v b="$(uptime_now)" 'BEGIN { printf "%.2f", b - a }'; }

# finish ok|REASON: brings the logs back and ends the run.
finish() {
    [ "$1" = ok ] || fact failed "$*"
    xl list >/results/xl-list.txt 2>&1
    xl dmesg >/results/xen-dmesg.txt 2>&1
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
    finish "timed out in dom0 after $1 s"
}

# install_programs: ours ahead of Debian's on PATH, xl-vgpu as xl.
install_programs() {
    [ "$LAB_DEVICE" = 1 ] || return 0
    mkdir -p /opt/vgpu
    mv /lab/bin /opt/vgpu/bin
    ln -s xl-vgpu /opt/vgpu/bin/xl
    export PATH="/opt/vgpu/bin:$PATH"
}

guest_log() { echo "/var/log/xen/console/guest-$1.log"; }

# guest_config NAME [LINE...]: writes /lab/NAME.cfg and prints its path.
guest_config() {
    name=$1
    shift
    {
        cat <<CONFIG
name = "$name"
type = "hvm"
memory = 512
vcpus = 1
cpus = "1"
kernel = "/lab/vmlinuz"
ramdisk = "/lab/guest-initrd"
cmdline = "console=hvc0 panic=5 log_buf_len=4M iomem=relaxed fbcon=map:9"
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
        for line in "$@"; do echo "$line"; done
    } >"/lab/$name.cfg"
    echo "/lab/$name.cfg"
}

# guest_create NAME: xl create, and its console on ours from then on.
guest_create() {
    start=$(uptime_now)
    echo "$start" >"/run/start-$1"
    xl create "/lab/$1.cfg" >"/results/xl-create-$1.txt" 2>&1 || {
        # The first complaint is the cause, the rest is its clean-up.
        reason=$(grep -m 1 -i error "/results/xl-create-$1.txt" || tail -n 1 "/results/xl-create-$1.txt")
        finish "xl create $1: $reason"
    }
    fact "xl-create-seconds/$1" "$(since "$start")"
    fact "domid/$1" "$(xl domid "$1")"
    tail -n +1 -F "$(guest_log "$1")" 2>/dev/null | sed -u "s/^/[$1] /" &
}

guest_alive() { xl domid "$1" >/dev/null 2>&1; }

# guest_wait NAME PATTERN SECONDS WHAT: until its console shows PATTERN.
guest_wait() {
    deadline=$(($(cut -d. -f1 /proc/uptime) + $3))
    until grep -q "$2" "$(guest_log "$1")" 2>/dev/null; do
        guest_alive "$1" || finish "guest $1 ended before $4"
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$deadline" ] || finish "guest $1: no $4 within $3 s"
        sleep 0.5
    done
}

# guest_ready NAME SECONDS: until its init takes commands.
guest_ready() {
    guest_wait "$1" '^LAB ready' "$2" "boot"
    fact "guest-boot-seconds/$1" "$(since "$(cat "/run/start-$1")")"
}

sequence=0
# guest_start NAME COMMAND...: tells a guest to run a script; sets $sequence.
guest_start() {
    name=$1
    shift
    sequence=$((sequence + 1))
    tty=$(xenstore-read "/local/domain/$(xl domid "$name")/console/tty")
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
