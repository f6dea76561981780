package containerruntime

// containerd's parts, each of which enters itself in its table of plugins.
// These are what the CRI needs, and what its client needs to load images.
import (
	"errors"
	"log/slog"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"golang.org/x/sys/unix"

	_ "github.com/containerd/containerd/api/types/runc/options"
	_ "github.com/containerd/containerd/v2/core/runtime/v2"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/cri"
	_ "github.com/containerd/containerd/v2/plugins/cri/images"
	_ "github.com/containerd/containerd/v2/plugins/cri/runtime"
	_ "github.com/containerd/containerd/v2/plugins/diff/walking/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/gc"
	_ "github.com/containerd/containerd/v2/plugins/imageverifier"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	_ "github.com/containerd/containerd/v2/plugins/mount"
	_ "github.com/containerd/containerd/v2/plugins/nri"
	_ "github.com/containerd/containerd/v2/plugins/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/healthcheck"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/streaming"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/transfer"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay/plugin"
	_ "github.com/containerd/containerd/v2/plugins/streaming"
	_ "github.com/containerd/containerd/v2/plugins/transfer"

	"knarr/internal/inotify"
)

// required plugins; without one of them no pod can run.
var required = map[string]bool{
	"io.containerd.grpc.v1.events":    true, // what the shims report to
	"io.containerd.grpc.v1.cri":       true,
	"io.containerd.cri.v1.runtime":    true,
	"io.containerd.cri.v1.images":     true,
	"io.containerd.metadata.v1.bolt":  true,
	"io.containerd.runtime.v2.task":   true,
	"io.containerd.shim.v1.manager":   true,
	"io.containerd.transfer.v1.local": true,
}

// replaced is a plugin in whose place another is that by makes of it, once it has begun.
func replaced(p plugin.Registration, by func(ic *plugin.InitContext, theirs any) (any, error)) plugin.Registration {
	begin := p.InitFn
	p.InitFn = func(ic *plugin.InitContext) (any, error) {
		theirs, err := begin(ic)
		if err != nil {
			return theirs, err
		}
		return by(ic, theirs)
	}
	return p
}

// watching has the CRI, which does not begin without a watcher of its directory of networks,
// begin though pods watch as much as root may: they outlive this process, and without a
// runtime nobody would end them. What it executes then is not root's: where only root can
// reach the shim's program, what that can do stays unknown until the next start, and pods
// with users of their own are refused.
func watching(p plugin.Registration) plugin.Registration {
	if p.Type != plugins.GRPCPlugin || p.ID != "cri" {
		return p
	}
	begin := p.InitFn
	p.InitFn = func(ic *plugin.InitContext) (made any, err error) {
		if made, err = begin(ic); !errors.Is(err, unix.EMFILE) {
			return made, err
		}
		slog.Warn("root's programs, containers among them, watch as many files as they may (fs.inotify.max_user_instances): "+
			"until the container runtime starts again with fewer, pods with users of their own may be refused", "err", err)
		err = inotify.Apart(func() (err error) {
			made, err = begin(ic)
			return err
		})
		return made, err
	}
	return p
}
