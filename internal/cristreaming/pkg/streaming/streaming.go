// Package streaming stands for k8s.io/cri-streaming, by which containerd serves exec, attach
// and port-forward. There a client has as many streams as it likes, none of them ends with
// it, and each forwarded connection holds a thread. Here all of these have bounds, for each
// container and sandbox and for the node; what a client began ends when the client leaves;
// and where Config.Dial is set a forwarded connection has no thread.
package streaming

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
)

// A Server gives addresses for streams, and serves them.
type Server interface {
	http.Handler
	GetExec(*cri.ExecRequest) (*cri.ExecResponse, error)
	GetAttach(*cri.AttachRequest) (*cri.AttachResponse, error)
	GetPortForward(*cri.PortForwardRequest) (*cri.PortForwardResponse, error)
	// Start serves until Stop. stayUp is always true.
	Start(stayUp bool) error
	// Stop also ends the connections of clients.
	Stop() error
}

// A Runtime runs commands in containers, and has their streams. The context of Attach and of
// PortForward ends with the client; that of Exec does so only if too many commands go on
// without theirs.
type Runtime interface {
	Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	Attach(ctx context.Context, containerID string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	PortForward(ctx context.Context, podSandboxID string, port int32, stream io.ReadWriteCloser) error
}

// Config is what a server needs to know.
type Config struct {
	// Addr is where it listens.
	Addr string
	// BaseURL is what its addresses begin with. Default: Addr.
	BaseURL *url.URL
	// StreamIdleTimeout ends a client's connection on which nothing moves.
	StreamIdleTimeout time.Duration
	// StreamCreationTimeout bounds the time a client takes to create its streams.
	StreamCreationTimeout time.Duration
	// SupportedRemoteCommandProtocols are those of exec and attach by SPDY.
	SupportedRemoteCommandProtocols []string
	// SupportedPortForwardProtocols are those of port-forward by SPDY.
	SupportedPortForwardProtocols []string
	// TLSConfig is for TLS; nil: none.
	TLSConfig *tls.Config

	// Dial connects to a port of a sandbox, in place of Runtime.PortForward, which holds a
	// thread for as long as it forwards. Its errors are the client's. Default: there is none.
	Dial func(ctx context.Context, podSandboxID string, port int32) (net.Conn, error)
	// Frames gives what a client of WebSocket sends, with frames of a bounded length, which are
	// held in memory. Default: as it is sent, of up to 32 MiB.
	Frames func(io.Reader) io.Reader
	// Go starts a goroutine of a name, whose panic must end nothing else. Default: one that
	// logs panics.
	Go func(name string, f func())
}

// DefaultConfig is what containerd makes its configuration of.
var DefaultConfig = Config{
	StreamIdleTimeout:               4 * time.Hour,
	StreamCreationTimeout:           30 * time.Second,
	SupportedRemoteCommandProtocols: []string{"v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"},
	SupportedPortForwardProtocols:   []string{"portforward.k8s.io"},
}

type server struct {
	config  Config
	runtime Runtime
	http    *http.Server
	tokens  tokens
	// sessions and those after it count what the bounds of these names are for.
	sessions, orphans, forwarders, forwarded places

	stopped chan struct{}
	stop    func()

	mu   sync.Mutex
	base url.URL
}

// NewServer gives a server of runtime's streams. It does not listen before Start.
func NewServer(config Config, runtime Runtime) (Server, error) {
	s := &server{config: config, runtime: runtime, stopped: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	if s.config.Go == nil {
		s.config.Go = logged
	}
	switch {
	case config.BaseURL != nil:
		s.base = *config.BaseURL
	case config.TLSConfig != nil:
		s.base = url.URL{Scheme: "https", Host: config.Addr}
	default:
		s.base = url.URL{Scheme: "http", Host: config.Addr}
	}
	s.http = &http.Server{Addr: config.Addr, Handler: s, TLSConfig: config.TLSConfig, ReadHeaderTimeout: 30 * time.Second}
	return s, nil
}

// logged starts a goroutine whose panic is logged.
func logged(name string, f func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil {
				klog.ErrorS(nil, "panic", "goroutine", name, "panic", p)
			}
		}()
		f()
	}()
}

func (s *server) Start(stayUp bool) error {
	if !stayUp {
		return errors.New("stayUp=false is not yet implemented")
	}
	l, err := net.Listen("tcp", s.config.Addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.base.Host = l.Addr().String() // with the port, where any was asked for
	s.mu.Unlock()
	if s.config.TLSConfig != nil {
		return s.http.ServeTLS(l, "", "")
	}
	return s.http.Serve(l)
}

func (s *server) Stop() error {
	s.stop()
	return s.http.Close()
}

func (s *server) GetExec(r *cri.ExecRequest) (*cri.ExecResponse, error) {
	if err := validate(r.ContainerId, r.Stdin, r.Stdout, r.Stderr, r.Tty, "or"); err != nil {
		return nil, err
	}
	at, err := s.address("exec", r.ContainerId, r)
	if err != nil {
		return nil, err
	}
	return &cri.ExecResponse{Url: at}, nil
}

func (s *server) GetAttach(r *cri.AttachRequest) (*cri.AttachResponse, error) {
	if err := validate(r.ContainerId, r.Stdin, r.Stdout, r.Stderr, r.Tty, "and"); err != nil {
		return nil, err
	}
	at, err := s.address("attach", r.ContainerId, r)
	if err != nil {
		return nil, err
	}
	return &cri.AttachResponse{Url: at}, nil
}

func (s *server) GetPortForward(r *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	if r.PodSandboxId == "" {
		return nil, status.Error(codes.InvalidArgument, "missing required pod_sandbox_id")
	}
	at, err := s.address("portforward", r.PodSandboxId, r)
	if err != nil {
		return nil, err
	}
	return &cri.PortForwardResponse{Url: at}, nil
}

// validate checks what a client wants of a container, by the words that clients know.
func validate(container string, stdin, stdout, stderr, tty bool, last string) error {
	switch {
	case container == "":
		return status.Error(codes.InvalidArgument, "missing required container_id")
	case tty && stderr: // a terminal has one stream out
		return status.Error(codes.InvalidArgument, "tty and stderr cannot both be true")
	case !stdin && !stdout && !stderr:
		return status.Errorf(codes.InvalidArgument, "one of stdin, stdout, %s stderr must be set", last)
	}
	return nil
}

// address keeps a request for the client that comes for it, and gives where to.
func (s *server) address(verb, of string, request any) (string, error) {
	token, err := s.tokens.add(of, request)
	if err != nil {
		return "", status.Error(codes.ResourceExhausted, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base.ResolveReference(&url.URL{Path: path.Join(verb, token)}).String(), nil
}

// ServeHTTP serves /exec/TOKEN, /attach/TOKEN and /portforward/TOKEN, below BaseURL's folder.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, path.Join("/", path.Dir(s.base.Path)))
	verb, token, found := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch {
	case !ok || !found || verb != "exec" && verb != "attach" && verb != "portforward":
		http.NotFound(w, r)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodPost:
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	switch request := s.tokens.take(token).(type) {
	case *cri.ExecRequest:
		if verb == "exec" {
			s.serveExec(w, r, request)
			return
		}
	case *cri.AttachRequest:
		if verb == "attach" {
			s.serveAttach(w, r, request)
			return
		}
	case *cri.PortForwardRequest:
		if verb == "portforward" {
			s.servePortForward(w, r, request)
			return
		}
	}
	http.NotFound(w, r)
}
