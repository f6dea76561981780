package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"knarr/node/cni"
	"knarr/node/containerruntime"
)

// ErrNoCluster says that a directory is not one of a server or an agent.
var ErrNoCluster = errors.New("holds no cluster")

// Down stops the cluster of dir, if it runs, and removes its containers,
// mounts, links, tables and cgroups. With purge its data goes too, of which the
// cluster's other servers are told unless leave is false.
func Down(ctx context.Context, dir string, purge, leave bool) error {
	if os.Geteuid() != 0 {
		return errors.New("knarr down removes containers and must be root; start it with sudo")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l := layout{dir}
	if _, err := os.Stat(l.state()); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--data-dir %s %w; there is nothing to take down", dir, ErrNoCluster)
	}
	if purge && leave {
		l.leave(ctx)
	}
	if err := l.stopRunning(ctx); err != nil {
		return err
	}
	errs := []error{
		endHolder(l),
		containerruntime.Purge(ctx, l.runtimeConfig()),
		cni.Remove(l.cniConfig()),
		removeServiceTable(l.table()),
		unmountBelow(filepath.Join(l.kubelet(), "pods")),
	}
	remove := []string{l.runDir(), filepath.Join(l.kubelet(), "pods"), l.podLogs()}
	if purge {
		remove = append(remove, l.dir, l.kubelet())
	}
	if errors.Join(errs...) == nil { // removing below a mount that stayed would remove what is mounted
		for _, path := range remove {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// stopRunning ends the server that holds the lock and waits for it.
func (l layout) stopRunning(ctx context.Context) error {
	lock, err := os.OpenFile(l.lock(), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	free := func() bool { return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }
	if free() {
		return nil
	}
	b, err := os.ReadFile(l.lock())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("%s is held by an unknown process; stop it by hand", l.lock())
	}
	// The lock is held, so the process that wrote its id there is alive and is
	// the one; ids are reused, but not while their owner lives.
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for wait := 10 * time.Second; wait > 0; wait -= 20 * time.Millisecond {
		if free() {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("process %d did not end within 10 s of SIGTERM; stop it by hand", pid)
}

// unmountBelow takes down every mount in dir, the deepest first.
func unmountBelow(dir string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4]))
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}
