package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
)

const (
	stageVariable = "KNARR_RIG_STAGE"
	stageInit     = "init"
	stageInside   = "inside"
)

// hidden are directories of the host that upstream's programs write to whatever
// their flags say: the kubelet listens for plugins of devices in the first,
// containerd keeps pods' network namespaces in the second, the results of
// network plugins in the third and shims' sockets in the fourth. What kubeadm
// writes names files in the last two. The programs get empty ones of their own.
var hidden = []string{"/var/lib/kubelet", "/run/netns", "/var/lib/cni", "/run/containerd", "/etc/kubernetes", "/usr/libexec/kubernetes"}

// Isolate runs the rest of this program in network, mount and process
// namespaces of its own, so that whatever happens to it nothing of what it
// started stays, and no rule of it reaches the host's network. It returns in
// the innermost process only; the others end with its code. Call it first. What
// needs the host's network is done by prepare, before.
func Isolate(ctx context.Context, prepare func(context.Context) error) error {
	switch os.Getenv(stageVariable) {
	case stageInside:
		return nil
	case stageInit:
		code, err := initStage()
		if err != nil {
			return err
		}
		os.Exit(code)
	}
	if os.Geteuid() != 0 {
		return errors.New("this makes namespaces and containers: run it as root")
	}
	if err := prepare(ctx); err != nil {
		return err
	}
	cmd := again(stageInit)
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	made := makeAll(hidden)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err := cmd.Wait()
	for _, dir := range made {
		if !mountPoint("/proc", dir) {
			_ = os.Remove(dir) // only if it is still empty
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// makeAll makes the directories that are not there, and gives those it made, the
// innermost first.
func makeAll(dirs []string) (made []string) {
	for _, dir := range dirs {
		if os.Mkdir(dir, 0o750) == nil {
			made = append([]string{dir}, made...)
		}
	}
	return made
}

// mountPoint reports whether a process of this machine has something mounted at a
// directory, as nodes of `knarr dev` have. It looks empty from here, and the kernel
// would unmount what is there.
func mountPoint(proc, dir string) bool {
	tables, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "mountinfo"))
	return slices.ContainsFunc(tables, func(table string) bool {
		b, err := os.ReadFile(table)
		return err == nil && bytes.Contains(b, []byte(" "+dir+" "))
	})
}

// hide puts an empty directory over each of these, in this mount namespace.
func hide(dirs []string) error {
	for _, dir := range dirs {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return nil
}

func again(stage string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageVariable+"="+stage)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

// initStage is the first process of the namespaces: it sets them up, starts the
// program again in them, and reaps what nobody else does.
func initStage() (int, error) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w", err)
	}
	if err := network(); err != nil {
		return 1, err
	}
	if err := noResolver(); err != nil {
		return 1, err
	}
	if err := hide(hidden); err != nil {
		return 1, err
	}
	cmd := again(stageInside)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 1, err
		}
		if pid == cmd.Process.Pid {
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
}

// network makes this namespace look like a host's: loopback, and a link with
// an address and a default route that leads nowhere.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	uplink := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}}
	address, err := netlink.ParseAddr("10.166.0.1/24")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netlink.LinkAdd(uplink)); err != nil {
		return fmt.Errorf("set up the network: %w", err)
	}
	if err := errors.Join(netlink.AddrAdd(uplink, address), netlink.LinkSetUp(uplink)); err != nil {
		return fmt.Errorf("set up the network: %w", err)
	}
	route := &netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: address.IP.Mask(address.Mask)}
	route.Gw[3] = 254
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("set up the network: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// noResolver hides the host's name servers, which cannot be reached from here:
// a name of nobody's is told so at once.
func noResolver() error {
	const conf = "/etc/resolv.conf"
	if !exists(conf) {
		return nil
	}
	f, err := os.CreateTemp("", "resolv.conf-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // the mount keeps it
	if _, err = f.WriteString("nameserver 127.0.0.1\n"); err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := syscall.Mount(f.Name(), conf, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("hide %s: %w", conf, err)
	}
	return nil
}
