package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/soheilhy/cmux"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"

	"knarr/internal/run"
)

// How long the end waits for those who are being answered.
const (
	clientsTimeout = 2 * time.Second
	peersTimeout   = time.Second
)

// headTimeout bounds how long a caller may take to say what it wants: etcd's own
// figure.
const headTimeout = 5 * time.Minute

// serving is etcd's server with the listeners through which peers and clients
// reach it. etcd's own package for this, embed, links a page of traces, and with
// it every exported method of every type of the program: 20 MB.
type serving struct {
	*etcdserver.EtcdServer
	peers, clients []net.Listener
	ends           []func(context.Context) // of clients' servers, then peers'
	failed         chan error              // the first listener that ended by itself
	group          run.Group
	closing        sync.Once
}

// serve starts the server of a configuration; nothing listens after an error.
func serve(cfg config.ServerConfig, peers, clients []url.URL) (_ *serving, err error) {
	s := &serving{failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			for _, l := range append(s.peers, s.clients...) {
				_ = l.Close()
			}
		}
	}()
	for _, u := range peers {
		l, err := transport.NewListenerWithOpts(u.Host, u.Scheme, transport.WithTLSInfo(&cfg.PeerTLSInfo),
			transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout))
		if err != nil {
			return nil, fmt.Errorf("listen for peers on %s: %w", u.Host, err)
		}
		s.peers = append(s.peers, l)
	}
	for _, u := range clients {
		if u.Scheme != "http" && u.Scheme != "unix" {
			return nil, fmt.Errorf("listen for clients on %s: the scheme must be http or unix", u.String())
		}
		l, err := transport.NewListenerWithOpts(u.Host+u.Path, u.Scheme, transport.WithSkipTLSInfoCheck(true))
		if err != nil {
			return nil, fmt.Errorf("listen for clients on %s: %w", u.Host+u.Path, err)
		}
		s.clients = append(s.clients, l)
	}
	if s.EtcdServer, err = etcdserver.NewServer(cfg); err != nil {
		return nil, err
	}
	s.Start()
	for _, l := range s.peers {
		s.servePeers(l)
	}
	for _, l := range s.clients {
		s.serveClients(l)
	}
	return s, nil
}

func (s *serving) servePeers(l net.Listener) {
	h := &http.Server{
		Handler:     etcdhttp.NewPeerHandler(s.Logger(), s.EtcdServer),
		ReadTimeout: headTimeout,
		ErrorLog:    log.New(io.Discard, "", 0),
	}
	s.ends = append(s.ends, func(ctx context.Context) { _ = h.Shutdown(ctx) })
	s.run(func() error { return h.Serve(l) })
}

// serveClients answers gRPC, and beside it, over HTTP/1, health, version and
// metrics, once the member is ready.
func (s *serving) serveClients(l net.Listener) {
	own := v3client.New(s.EtcdServer)
	g := v3rpc.Server(s.EtcdServer, nil, nil)
	v3electionpb.RegisterElectionServer(g, v3election.NewElectionServer(own))
	v3lockpb.RegisterLockServer(g, v3lock.NewLockServer(own))
	mux := http.NewServeMux()
	etcdhttp.HandleVersion(mux, s.EtcdServer)
	etcdhttp.HandleMetrics(mux)
	etcdhttp.HandleHealth(s.Logger(), mux, s.EtcdServer)
	h := &http.Server{Handler: mux, ReadHeaderTimeout: headTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	both := cmux.New(l)
	one, two := both.Match(cmux.HTTP1()), both.Match(cmux.HTTP2())
	s.ends = append([]func(context.Context){func(ctx context.Context) {
		_ = h.Shutdown(ctx)
		endCalls(ctx, g)
		_ = l.Close()
		_ = own.Close()
	}}, s.ends...)
	s.run(func() error { return h.Serve(one) })
	s.run(func() error { return g.Serve(two) })
	s.run(func() error {
		select {
		case <-s.ReadyNotify():
			return both.Serve()
		case <-s.StoppingNotify():
			return nil
		}
	})
}

// endCalls waits for what is being answered; watches would go on for ever.
func endCalls(ctx context.Context, g *grpc.Server) {
	done := make(chan struct{})
	run.Go("etcd: end calls", func() {
		defer close(done)
		g.GracefulStop()
	})
	select {
	case <-done:
	case <-ctx.Done():
		g.Stop()
		<-done
	}
}

// run keeps the first error that is not the end.
func (s *serving) run(f func() error) {
	s.group.Go("etcd: serve", func() {
		err := run.Catch("etcd: serve", f)
		if err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, cmux.ErrListenerClosed) || errors.Is(err, cmux.ErrServerClosed) {
			return
		}
		select {
		case s.failed <- err:
		default:
		}
	})
}

// Close ends clients' calls, then the server, then peers' calls.
func (s *serving) Close() {
	s.closing.Do(func() {
		clients := s.ends[:len(s.clients)]
		for _, end := range clients {
			within(clientsTimeout, end)
		}
		s.Stop()
		for _, end := range s.ends[len(s.clients):] {
			within(peersTimeout, end)
		}
		for _, l := range s.peers {
			_ = l.Close()
		}
		s.group.Wait()
	})
}

func within(d time.Duration, end func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	end(ctx)
}
