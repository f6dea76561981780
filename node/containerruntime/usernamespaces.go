package containerruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// CheckUserNamespaces makes what a pod with users of its own needs (hostUsers: false): a
// user namespace, and a tmpfs that is mounted with its ids, as a pod's Secrets are. Its
// mounts are the caller's to be rid of, by a mount namespace that ends.
func CheckUserNamespaces() (err error) {
	ids := fmt.Sprintf("0:%d:%[1]d", 1<<16)
	users, err := mount.GetUsernsFD(ids, ids)
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer users.Close()
	dir, err := os.MkdirTemp("", "knarr-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(dir)) }()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{from, to} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := mount.IDMapMount(from, to, int(users.Fd())); err != nil {
		return fmt.Errorf("mount a tmpfs with a pod's ids: %w", err)
	}
	var s unix.Stat_t
	if err := unix.Stat(to, &s); err != nil {
		return err
	}
	if s.Uid != 1<<16 {
		return fmt.Errorf("what root has in a tmpfs with a pod's ids is user %d's, not %d's", s.Uid, 1<<16)
	}
	return nil
}
