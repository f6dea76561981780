package containerruntime

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"golang.org/x/sys/unix"
)

// DefaultNRISocket is where plugins of the node resource interface look for a runtime.
const DefaultNRISocket = "/run/nri/nri.sock"

// nri are the settings of that interface. A node that has not the customary socket, since it is
// one of several on its machine or another runtime has taken it, begins no plugins of the
// machine's. Pure.
func (c Config) nri(taken bool) map[string]any {
	if c.NRISocket != "" && !taken {
		return map[string]any{"socket_path": c.NRISocket}
	}
	dir := filepath.Dir(c.ownNRISocket())
	return map[string]any{"socket_path": c.ownNRISocket(), "plugin_path": filepath.Join(dir, "plugins"), "plugin_config_path": filepath.Join(dir, "conf.d")}
}

func (c Config) ownNRISocket() string { return filepath.Join(c.State, "nri", "nri.sock") }

// nriTaken says whether another runtime has the customary socket.
func (c Config) nriTaken() bool { return c.NRISocket != "" && listened(c.NRISocket) }

// listened says whether a process listens at a socket, also one that has no time to answer.
func listened(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED)
}

// removeNRI removes the customary socket, which a runtime that was killed leaves, and its
// directory if that is empty then.
func (c Config) removeNRI() {
	if c.NRISocket != "" && !c.nriTaken() {
		_ = os.Remove(c.NRISocket)
		_ = os.Remove(filepath.Dir(c.NRISocket))
	}
}

// hasNRI says that containerd has entered itself in the interface's table, which is the
// process' and has no way out: a second runtime of this process goes without.
var hasNRI atomic.Bool

func oneNRI(p plugin.Registration) plugin.Registration {
	if p.Type != plugins.NRIApiPlugin {
		return p
	}
	begin := p.InitFn
	p.InitFn = func(ic *plugin.InitContext) (any, error) {
		if hasNRI.Swap(true) {
			return nil, plugin.ErrSkipPlugin
		}
		return begin(ic)
	}
	return p
}
