package containerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"knarr/internal/run"
	"knarr/internal/wsframes"
)

// streams has the CRI's server of streams forward connections by d, and take short frames.
func streams(p plugin.Registration, d *portDialer) plugin.Registration {
	if p.Type != plugins.GRPCPlugin || p.ID != "cri" {
		return p
	}
	begin := p.InitFn
	p.InitFn = func(ic *plugin.InitContext) (any, error) {
		streaming.DefaultConfig.Dial, streaming.DefaultConfig.Go, streaming.DefaultConfig.Frames = d.dial, run.Go, wsframes.Split
		return begin(ic)
	}
	return p
}

// A portDialer connects to ports of sandboxes in containerd's place, which holds a thread for
// each connection as long as it lasts: any user of port-forward could take all threads there
// are, and with them this process. Here a thread only makes the sockets.
type portDialer struct {
	client  *containerd.Client
	runtime cri.RuntimeServiceClient
	// entering bounds the threads that are in sandboxes.
	entering chan struct{}
}

func newPortDialer(conn *grpc.ClientConn) (*portDialer, error) {
	client, err := connect(conn)
	if err != nil {
		return nil, fmt.Errorf("connect to the sandboxes: %w", err)
	}
	return &portDialer{client: client, runtime: cri.NewRuntimeServiceClient(conn), entering: make(chan struct{}, 8)}, nil
}

// dial connects to a port of a sandbox's localhost: by IPv4, else by IPv6. Its errors are in
// containerd's words, which clients read.
func (d *portDialer) dial(ctx context.Context, sandbox string, port int32) (net.Conn, error) {
	if port <= 0 || port > math.MaxUint16 {
		return nil, fmt.Errorf("invalid port %d", port)
	}
	path, host, err := d.namespace(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		if host {
			path = "host"
		}
		return nil, fmt.Errorf("failed to execute portforward in network namespace %q: %w", path, err)
	}
	var four, six socket
	if host {
		four, six = newSocket(unix.AF_INET), newSocket(unix.AF_INET6)
	} else if four, six, err = d.sockets(ctx, sandbox, path); err != nil {
		return fail(err)
	}
	defer four.close()
	defer six.close()
	conn, err := four.connect(ctx, net.IPv4(127, 0, 0, 1), int(port))
	if err == nil {
		return conn, nil
	}
	conn, errSix := six.connect(ctx, net.IPv6loopback, int(port))
	if errSix == nil {
		return conn, nil
	}
	return fail(fmt.Errorf("failed to connect to localhost:%d inside namespace %q, IPv4: %v IPv6 %v ", port, sandbox, err, errSix))
}

// namespace gives the file of a sandbox's network namespace, or that it has the node's.
func (d *portDialer) namespace(ctx context.Context, sandbox string) (path string, host bool, err error) {
	ctx = namespaces.WithNamespace(ctx, imageNamespace)
	known, err := d.client.SandboxStore().Get(ctx, sandbox)
	if errdefs.IsNotFound(err) { // users of crictl give the beginning of an id
		list, lerr := d.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: sandbox}})
		if lerr == nil && len(list.Items) == 1 {
			known, err = d.client.SandboxStore().Get(ctx, list.Items[0].Id)
		}
	}
	if err != nil {
		return "", false, fmt.Errorf("failed to find sandbox %q in store: %w", sandbox, err)
	}
	for _, extension := range known.Extensions {
		var of struct {
			Metadata struct {
				Config    *cri.PodSandboxConfig
				NetNSPath string
			}
		}
		if json.Unmarshal(extension.GetValue(), &of) != nil || of.Metadata.Config == nil {
			continue
		}
		if of.Metadata.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == cri.NamespaceMode_NODE {
			return "", true, nil
		}
		if of.Metadata.NetNSPath != "" {
			return of.Metadata.NetNSPath, false, nil
		}
	}
	return "", false, fmt.Errorf("network namespace for sandbox %q is closed", sandbox)
}

// sockets makes one for IPv4 and one for IPv6 within a network namespace, where they stay.
func (d *portDialer) sockets(ctx context.Context, sandbox, path string) (four, six socket, err error) {
	select {
	case d.entering <- struct{}{}:
	case <-ctx.Done():
		return four, six, ctx.Err()
	}
	defer func() { <-d.entering }()
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("network namespace for sandbox %q is closed", sandbox)
	}
	if err != nil {
		return four, six, err
	}
	defer file.Close()
	err = run.OnThread("container runtime: port-forward", func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		four, six = newSocket(unix.AF_INET), newSocket(unix.AF_INET6)
		return nil
	})
	return four, six, err
}

// A socket of a network namespace, or why there is none.
type socket struct {
	file *os.File
	err  error
}

func newSocket(family int) socket {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return socket{err: os.NewSyscallError("socket", err)}
	}
	return socket{file: os.NewFile(uintptr(fd), "port-forward")}
}

func (s socket) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// connect waits for the connection without a thread: a pod need not answer.
func (s socket) connect(ctx context.Context, ip net.IP, port int) (net.Conn, error) {
	network, to := "tcp6", unix.Sockaddr(&unix.SockaddrInet6{Port: port, Addr: [16]byte(ip.To16())})
	if four := ip.To4(); four != nil {
		network, to = "tcp4", &unix.SockaddrInet4{Port: port, Addr: [4]byte(four)}
	}
	conn, err := s.connectTo(ctx, to)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.TCPAddr{IP: ip, Port: port}, Err: err}
	}
	return conn, nil
}

func (s socket) connectTo(ctx context.Context, to unix.Sockaddr) (net.Conn, error) {
	if s.err != nil {
		return nil, s.err
	}
	raw, err := s.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var started error
	if err := raw.Control(func(fd uintptr) { started = unix.Connect(int(fd), to) }); err != nil {
		return nil, err
	}
	if started != nil && !slices.Contains([]error{unix.EINPROGRESS, unix.EINTR}, started) {
		return nil, os.NewSyscallError("connect", started)
	}
	// The end of ctx closes the socket, and so the wait for it.
	defer context.AfterFunc(ctx, func() { s.file.Close() })()
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		var code int
		if code, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); failed != nil {
			return true
		}
		if code != 0 {
			failed = unix.Errno(code)
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return !errors.Is(err, unix.ENOTCONN)
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, os.NewSyscallError("connect", failed)
	}
	return net.FileConn(s.file)
}
