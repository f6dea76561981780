package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// goneAfter is how old an attachment must be that is taken for one whose pod is gone: a
// younger one may be on its way.
const goneAfter = 5 * time.Minute

// CollectGone gives back the addresses and host ports of pods that ended without a DEL,
// with the machine or the runtime's memory of them: their links are gone with them. The
// runtime has no such errand (GC) done.
func CollectGone(c *Conf, now time.Time) error {
	all, err := loadAttachments(c.StateDir)
	if err != nil {
		return fmt.Errorf("look for pods that are gone: %w", err)
	}
	var errs []error
	for _, a := range all {
		st, err := os.Stat(filepath.Join(attachmentDir(c.StateDir), a.key()))
		if err != nil || now.Sub(st.ModTime()) < goneAfter {
			continue
		}
		if _, err := netlink.LinkByName(hostLink(a.key())); errors.As(err, &netlink.LinkNotFoundError{}) {
			errs = append(errs, detach(c, a.ContainerID, a.IfName))
		}
	}
	// And the addresses of those that came no further than to take one.
	errs = append(errs, locked(c.StateDir, func() error {
		kept := map[string]bool{}
		entries, err := os.ReadDir(attachmentDir(c.StateDir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range entries { // one that cannot be read keeps its address too
			kept[strings.TrimSuffix(e.Name(), ".tmp")] = true
		}
		return releaseIf(c.StateDir, c.PodCIDRs, func(owner string) bool { return !kept[owner] })
	}))
	return errors.Join(errs...)
}
