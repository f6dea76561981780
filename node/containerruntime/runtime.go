// Package containerruntime runs containerd in this process. It reads and
// writes containerd's root and state directories, starts shims and containers
// (which outlive it), and serves the CRI and containerd's own API in memory and
// on a unix socket.
package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"knarr/internal/memnet"
	"knarr/internal/programs"
	"knarr/internal/run"
	"knarr/internal/unixsocket"
	"knarr/node/containerruntime/registries"
)

// DefaultSandboxImage is the name the embedded pause image goes by.
const DefaultSandboxImage = "registry.k8s.io/pause:3.10.2"

// Config says where a runtime keeps its things and what its pods get.
type Config struct {
	// Root is the directory of what must last: images, snapshots, metadata.
	Root string
	// State is the directory of what a reboot may take: sockets, bundles,
	// network namespaces. Default: Root with "-state" appended.
	State string
	// Programs is the directory the embedded shim is unpacked into.
	// Default: Root/bin.
	Programs string
	// CNIConfDir is where the network configuration is read from. Default /etc/cni/net.d.
	CNIConfDir string
	// CNIBinDir is where the network plugins are found. Default /opt/cni/bin.
	CNIBinDir string
	// NRISocket is where plugins of the node resource interface connect. Default, and where
	// another runtime has it: State/nri/nri.sock.
	NRISocket string
	// RegistryConfigDir holds one directory with a hosts.toml per registry.
	// Default: Root/certs.d.
	RegistryConfigDir string
	// Registries says where images are fetched from, in that directory's words too. Files
	// that an administrator has there win.
	Registries registries.Config
	// SandboxImage is the name of the image that holds a pod's namespaces; the
	// embedded one is loaded under it. Default DefaultSandboxImage.
	SandboxImage string
	// Snapshotter is overlayfs or native. Default: overlayfs where it works.
	Snapshotter string
	// CgroupParent is the cgroup below which this node's pods live; only Purge
	// reads it, since the kubelet names each pod's cgroup. Empty: none is removed.
	CgroupParent string
	// SystemdCgroup has systemd make the groups of containers, as scopes. The kubelet then
	// names slices. Default: they are made as directories.
	SystemdCgroup bool
	// Handlers are offered beside those that are found on the machine. Default: none.
	Handlers []Handler
	// StreamAddress is the address exec, attach and port-forward are served
	// on. Default 127.0.0.1, any free port.
	StreamAddress string
	// Log receives containerd's warnings. Default slog.Default().
	Log *slog.Logger

	timeouts timeouts               // of the shim; default shimTimeouts
	shimEnds *prometheus.CounterVec // default: one that nobody sees
}

func (c Config) withDefaults() (Config, error) {
	if c.Root == "" {
		return c, errors.New("container runtime: Root is not set")
	}
	var err error
	if c.Root, err = filepath.Abs(c.Root); err != nil {
		return c, err
	}
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.State, c.Root+"-state")
	if c.State, err = filepath.Abs(c.State); err != nil {
		return c, err
	}
	if c.State == c.Root {
		return c, errors.New("container runtime: State and Root are the same directory")
	}
	def(&c.Programs, filepath.Join(c.Root, "bin"))
	def(&c.CNIConfDir, "/etc/cni/net.d")
	def(&c.CNIBinDir, "/opt/cni/bin")
	def(&c.RegistryConfigDir, filepath.Join(c.Root, "certs.d"))
	def(&c.SandboxImage, DefaultSandboxImage)
	def(&c.StreamAddress, "127.0.0.1")
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if sock := c.Socket(); len(sock)+len(".ttrpc") > unixsocket.MaxPath {
		return c, fmt.Errorf("container runtime: socket path %s is longer than the kernel allows (%d); choose a shorter State", sock, unixsocket.MaxPath-len(".ttrpc"))
	}
	return c, nil
}

// Socket is the path of the unix socket the CRI and containerd's API are on.
func (c Config) Socket() string { return filepath.Join(c.State, "containerd.sock") }

// Runtime is containerd in this process.
type Runtime struct {
	config Config
	mem    *memnet.Listener
	ready  chan struct{}
	once   sync.Once
	// snapshotter is what was chosen at start.
	snapshotter atomic.Value
}

// New prepares a runtime; nothing starts before Run.
func New(c Config) (*Runtime, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	c.shimEnds = newShimEnds()
	return &Runtime{config: c, mem: memnet.Listen(), ready: make(chan struct{})}, nil
}

// Metrics are the runtime's own.
func (r *Runtime) Metrics() []prometheus.Collector { return []prometheus.Collector{r.config.shimEnds} }

// Name is the component's name.
func (r *Runtime) Name() string { return "container-runtime" }

// Ready is closed once pods can be run.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Socket is the path of the unix socket the same services are on.
func (r *Runtime) Socket() string { return r.config.Socket() }

// Snapshotter is the snapshotter in use, known once ready.
func (r *Runtime) Snapshotter() string {
	s, _ := r.snapshotter.Load().(string)
	return s
}

// Conn connects to the CRI and to containerd's services without a socket. It
// waits for Ready.
func (r *Runtime) Conn(ctx context.Context) (*grpc.ClientConn, error) {
	select {
	case <-r.ready:
		return r.dial()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *Runtime) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///containerd",
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return r.mem.Dial(ctx, "", addr)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize),
			grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize)))
}

// Run serves until ctx ends. Containers and their shims go on without it and
// are found again by the Run of the next Runtime; each runs once.
func (r *Runtime) Run(ctx context.Context) error {
	c := r.config
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{c.Root, 0o700}, {c.State, 0o711}, {c.Programs, 0o755}, {c.CNIConfDir, 0o755}, {c.RegistryConfigDir, 0o755}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return err
		}
	}
	unlock, err := lock(filepath.Join(c.Root, "lock"))
	if err != nil {
		return err
	}
	defer unlock()

	if _, err := os.Stat(hostsFile); errors.Is(err, fs.ErrNotExist) {
		made, err := makeHosts(hostsFile)
		if made {
			c.Log.Info("this machine had no hosts file, so one was made", "path", hostsFile)
		}
		if err != nil {
			c.Log.Warn("this machine has no hosts file", "err", err)
		}
	}
	host, err := prepare(c)
	if err != nil {
		return err
	}
	if err := searchFirst(c.Programs); err != nil {
		return err
	}
	r.snapshotter.Store(host.snapshotter)
	return r.serve(ctx, host)
}

// prepare unpacks the shim while it looks at the machine.
func prepare(c Config) (h host, err error) {
	var shim, verb string
	var shimErr, verbErr error
	var wg run.Group
	wg.Go("unpack shim", func() { shim, shimErr = programs.Unpack(c.Programs, programs.Shim) })
	h, err = inspect(c)
	if verb, verbErr = programs.Unpack(c.Programs, programs.Verb); verbErr == nil {
		verbErr = nameShim(c.Programs)
	}
	wg.Wait()
	h.shim, h.verb = shim, verb
	return h, errors.Join(err, shimErr, verbErr)
}

// nameShim gives the shim the name that containerd looks for when it finds a
// container running. It takes the place of the shim of versions before, and can
// delete what that one left.
func nameShim(dir string) error {
	path := filepath.Join(dir, formerShim)
	if to, err := os.Readlink(path); err == nil && to == programs.Verb {
		return nil
	}
	part := filepath.Join(dir, "."+formerShim)
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(programs.Verb, part); err != nil {
		return err
	}
	return os.Rename(part, path)
}
