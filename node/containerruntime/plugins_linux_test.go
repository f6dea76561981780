package containerruntime

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"golang.org/x/sys/unix"

	"knarr/internal/need"
)

// TestWatching: the CRI begins as it is, and once more, counted apart, if root has as many
// watchers as it may; for no other error.
func TestWatching(t *testing.T) {
	need.Root(t)
	other := errors.New("another")
	for _, c := range []struct {
		id    string
		first error
		users []bool // whether each try is root's
		err   error
	}{
		{"cri", nil, []bool{true}, nil},
		{"cri", other, []bool{true}, other},
		{"cri", fmt.Errorf("failed to create fsnotify watcher: %w", unix.EMFILE), []bool{true, false}, nil},
		{"events", unix.EMFILE, []bool{true}, unix.EMFILE},
	} {
		var users []bool
		p := watching(plugin.Registration{Type: plugins.GRPCPlugin, ID: c.id, InitFn: func(*plugin.InitContext) (any, error) {
			if users = append(users, unix.Geteuid() == 0); len(users) == 1 && c.first != nil {
				return nil, c.first
			}
			return c.id, nil
		}})
		made, err := p.InitFn(nil)
		if fmt.Sprint(users) != fmt.Sprint(c.users) || !errors.Is(err, c.err) || (err == nil) != (made == c.id) {
			t.Errorf("%s after %v: root's %v, %v, %v", c.id, c.first, users, made, err)
		}
	}
}
