// Command program speaks etcd's API before a SQL database, by kine. It reads
// its settings from standard input, serves the one connection it was given as
// descriptor 3 for as long as that lasts, and reads and writes the database. The
// first line it prints is "ready", or why it cannot be; then come warnings.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	_ "github.com/k3s-io/kine/pkg/drivers/mysql"
	_ "github.com/k3s-io/kine/pkg/drivers/pgsql"
	_ "github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/tls"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// settings are what the server that started this program wants.
type settings struct {
	Endpoint                  string
	CAFile, CertFile, KeyFile string
	StartTimeout              time.Duration // for a database that does not answer at first
	Retain                    int64         // revisions that no compaction takes
	MaxRequest                int           // bytes
}

func main() {
	// Whoever started it says when it ends, by closing the connection.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// pollInterval is how often changes are looked for that nobody announced: those
// that others made, and with SQLite too, where kine's poller takes the first
// announcement to prepare its query and would leave that change lying.
const pollInterval = time.Second

// stopTime bounds how long the database may take to be closed.
const stopTime = 3 * time.Second

func run() error {
	syscall.Umask(0o077) // SQLite's files are nobody else's affair
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	conn, err := net.FileConn(os.NewFile(3, "connection"))
	if err != nil {
		return fmt.Errorf("take the connection: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var open sync.WaitGroup
	backend, err := s.open(ctx, cancel, &open)
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(s.MaxRequest), grpc.MaxSendMsgSize(math.MaxInt32), grpc.MaxConcurrentStreams(math.MaxUint32))
	bridge := server.New(backend, "unix", progressTime, "3.6.11")
	etcdserverpb.RegisterKVServer(g, bridge)
	etcdserverpb.RegisterWatchServer(g, bridge)
	etcdserverpb.RegisterLeaseServer(g, bridge)
	etcdserverpb.RegisterMaintenanceServer(g, bridge)
	fmt.Println("ready")
	err = g.Serve(&only{conn: conn, gone: make(chan struct{})})
	cancel(nil)
	time.AfterFunc(stopTime, func() { os.Exit(0) })
	open.Wait()
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// progressTime is how often a watch without events hears where the store stands.
const progressTime = 5 * time.Second

// open opens the database, whose tables are made when they are not there.
func (s *settings) open(ctx context.Context, cancel context.CancelCauseFunc, open *sync.WaitGroup) (server.Backend, error) {
	tries := listen()
	late := time.AfterFunc(s.StartTimeout, func() { cancel(fmt.Errorf("no answer in %s: %s", s.StartTimeout, tries.last())) })
	defer late.Stop()
	b, err := s.persist(ctx, tries, open)
	if err == nil {
		err = b.Start(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	tries.end()
	if err != nil {
		return nil, err
	}
	return bounded(b), nil
}

// againTime is how soon a database that does not answer is asked again.
const againTime = 500 * time.Millisecond

// persist asks again where kine's drivers do not.
func (s *settings) persist(ctx context.Context, tries *attempts, open *sync.WaitGroup) (server.Backend, error) {
	for absent := 0; ; {
		one, cancel := context.WithCancelCause(ctx)
		tries.during(cancel)
		b, err := s.try(one, open)
		if err == nil {
			return b, nil // which goes on until ctx ends
		}
		if cause := context.Cause(one); cause != nil {
			err = cause
		}
		cancel(nil)
		hopeless := tries.failed(err.Error())
		if strings.Contains(err.Error(), noDatabase) { // the server may have come up after it was to be made
			absent++
			hopeless = absent > 1
		}
		if ctx.Err() != nil || hopeless {
			return nil, tries.because(err)
		}
		select {
		case <-time.After(againTime):
		case <-ctx.Done():
		}
	}
}

func (s *settings) try(ctx context.Context, open *sync.WaitGroup) (server.Backend, error) {
	_, b, err := drivers.New(ctx, open, &drivers.Config{
		Endpoint:             s.Endpoint,
		BackendTLSConfig:     tls.Config{CAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile},
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: 8, MaxIdleTime: time.Minute},
		CompactTimeout:       5 * time.Second, CompactMinRetain: s.Retain, CompactBatchSize: 1000,
		PollBatchSize: 500, PollInterval: pollInterval,
	})
	return b, err
}

// only is a listener for one connection.
type only struct {
	conn net.Conn
	gone chan struct{}
}

var errGone = errors.New("the connection has ended")

func (o *only) Accept() (net.Conn, error) {
	if c := o.conn; c != nil {
		o.conn = nil
		return &closing{Conn: c, gone: o.gone}, nil
	}
	<-o.gone
	return nil, errGone
}

func (o *only) Close() error   { return nil }
func (o *only) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// closing tells that it was closed.
type closing struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (c *closing) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}
