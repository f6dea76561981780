package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/run"
)

// TestKubeletDir: a cluster whose kubelet's files are mounted where upstream's
// kubelet has its own works with them there, and nobody else's does.
func TestKubeletDir(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	err := run.OnThread("a node", func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", filepath.Dir(UpstreamKubeletDir), "tmpfs", 0, ""); err != nil {
			return err
		}
		mine, other := layout{filepath.Join(dir, "mine")}, layout{filepath.Join(dir, "other")}
		for _, d := range []string{KubeletFiles(mine.dir), KubeletFiles(other.dir), UpstreamKubeletDir} {
			if err := os.MkdirAll(d, 0o750); err != nil {
				return err
			}
		}
		if got := mine.kubelet(); got != KubeletFiles(mine.dir) {
			t.Errorf("nothing is mounted: %s", got)
		}
		if err := unix.Mount(KubeletFiles(mine.dir), UpstreamKubeletDir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if got := mine.kubelet(); got != UpstreamKubeletDir {
			t.Errorf("mounted there: %s", got)
		}
		if got := other.kubelet(); got != KubeletFiles(other.dir) {
			t.Errorf("another's is mounted there: %s", got)
		}
		lock, err := mine.dataDirLock(marker{Version: 1}, true)
		if err != nil {
			return err
		}
		lock.release()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
