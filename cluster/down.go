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

// Down stops the cluster of dir, if it runs, and removes its containers,
// mounts, links, tables and cgroups. With purge its data goes too.
func Down(ctx context.Context, dir string, purge bool) error {
	if os.Geteuid() != 0 {
		return errors.New("knarr down removes containers and must be root; start it with sudo")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	o := Options{DataDir: dir}
	s := NewServer(o)
	if _, err := os.Stat(s.layout.state()); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--data-dir %s holds no cluster; there is nothing to take down", dir)
	}
	if err := s.stopRunning(ctx); err != nil {
		return err
	}
	errs := []error{
		endHolder(s.layout),
		containerruntime.Purge(ctx, s.runtimeConfig()),
		cni.Remove(s.cniConfig()),
		removeServiceTable(s.layout.table()),
		unmountBelow(filepath.Join(s.layout.kubelet(), "pods")),
	}
	remove := []string{s.layout.runDir(), filepath.Join(s.layout.kubelet(), "pods"), s.layout.podLogs()}
	if purge {
		remove = append(remove, s.layout.dir, s.layout.kubelet())
	}
	if errors.Join(errs...) == nil { // removing below a mount that stayed would remove what is mounted
		for _, path := range remove {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// stopRunning ends the server that holds the lock and waits for it.
func (s *Server) stopRunning(ctx context.Context) error {
	lock, err := os.OpenFile(s.layout.lock(), os.O_RDWR, 0)
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
	b, err := os.ReadFile(s.layout.lock())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("%s is held by an unknown process; stop it by hand", s.layout.lock())
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
