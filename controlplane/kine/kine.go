// Package kine keeps the cluster in a SQL database: a program of its own
// speaks etcd's API before SQLite, PostgreSQL or MySQL, by the library kine,
// which links their drivers. This package starts that program, hands it the
// database's address and a connection, and writes its log; the API server reads
// and writes through the connection.
package kine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Config says where the database is.
type Config struct {
	// Program is the file that runs.
	Program string
	// Endpoint is the database.
	Endpoint Endpoint
	// CAFile, CertFile and KeyFile are PEM files: who signed the database's
	// certificate, and what is shown to it. Default: what the endpoint says.
	CAFile, CertFile, KeyFile string
	// StartTimeout is how long the database may be silent at the start. Default 20
	// seconds.
	StartTimeout time.Duration
	// Retain is how many revisions no compaction takes. Default 1000, kine's.
	Retain int64
}

// maxRequestBytes is what one request may have, as with the embedded etcd.
const maxRequestBytes = 3 << 20

// launchTime is how long a start of the program may take: a large database is
// checked, and its tables may have to be changed.
const launchTime = 5 * time.Minute

// A Client reaches the database. It serves as storage.Clients: the program that
// ends is started anew, and writes that it did not answer are asked again.
type Client struct {
	cfg    Config
	client *clientv3.Client
	ended  context.Context // with Close
	end    context.CancelFunc

	mu      sync.Mutex // for one start at a time
	first   net.Conn   // not yet asked for
	running *child
	term    atomic.Pointer[context.Context]
}

// Start runs the program and returns once the database is open.
func Start(ctx context.Context, cfg Config) (*Client, error) {
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 20 * time.Second
	}
	if cfg.Retain == 0 {
		cfg.Retain = 1000
	}
	if file := cfg.Endpoint.file; file != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, fmt.Errorf("make the database's directory: %w", err)
		}
	}
	c := &Client{cfg: cfg}
	c.ended, c.end = context.WithCancel(context.Background())
	conn, err := c.launch(ctx)
	if err != nil {
		c.end()
		return nil, fmt.Errorf("open %s: %w", cfg.Endpoint, err)
	}
	c.first = conn
	c.client, err = clientv3.New(clientv3.Config{
		Endpoints: []string{"http://kine"}, MaxCallRecvMsgSize: 2 << 30, MaxCallSendMsgSize: 2 << 30, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(c.dial),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 5 * time.Second},
				MinConnectTimeout: launchTime,
			}),
		},
	})
	if err != nil {
		conn.Close()
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// dial gives the connection to the program, which is started when its last one
// is gone.
func (c *Client) dial(ctx context.Context, _ string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.first; conn != nil {
		c.first = nil
		return conn, nil
	}
	if c.ended.Err() != nil {
		return nil, errors.New("the datastore is closed")
	}
	<-c.running.done // two would write at once
	slog.WarnContext(ctx, "the datastore's program ended, starting it again", "datastore", c.cfg.Endpoint.String(), "why", c.running.why)
	conn, err := c.launch(ctx)
	if err != nil {
		slog.ErrorContext(ctx, "open the datastore", "datastore", c.cfg.Endpoint.String(), "err", err)
		return nil, err
	}
	return conn, nil
}

// Acquire is the client, good for as long as this one is.
func (c *Client) Acquire() *clientv3.Client { return c.client }

// Release ends what Acquire began.
func (c *Client) Release() {}

// Term ends with the program that runs now: what it did not answer is unknown.
func (c *Client) Term() context.Context { return *c.term.Load() }

// Run blocks until ctx ends, then closes the database.
func (c *Client) Run(ctx context.Context) error {
	<-ctx.Done()
	return c.Close()
}

// Close ends the program, which has a few seconds to close the database.
func (c *Client) Close() error {
	c.end()
	var err error
	if c.client != nil {
		err = c.client.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		c.first.Close()
	}
	if c.running != nil {
		<-c.running.done
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
