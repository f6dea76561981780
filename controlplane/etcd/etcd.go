// Package etcd is the embedded member of the datastore. It reads and writes
// its own directory and nothing else; the API server reaches it through the
// in-process client that Start returns.
package etcd

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Config says where the member lives.
type Config struct {
	// Dir is the member's directory. It is made with mode 0700.
	Dir string
	// Name of the member. Default "knarr".
	Name string
	// QuotaBytes bounds the database. Default 8 GiB.
	QuotaBytes int64
	// CompactEvery is how long history is kept. Default 5 minutes, upstream's
	// figure.
	CompactEvery time.Duration
	// Clients are the URLs to answer clients of other processes on. Default:
	// none, no port is opened. AdvertiseClients are what they are told,
	// Clients by default.
	Clients, AdvertiseClients []url.URL
	// UnsafeNoFsync acknowledges before the disk has it: for tests of others.
	UnsafeNoFsync bool
}

// A Member is a running member.
type Member struct {
	etcd   *embed.Etcd
	client *clientv3.Client
}

// While a member is alone nobody else's heartbeat can be late, so ticks are
// short and it elects itself at once.
const (
	aloneTickMs     = 10
	aloneElectionMs = 100
)

// maxRequestBytes is what upstream lets etcd take in one request at most.
const maxRequestBytes = 3 << 20

// startTimeout is how long a member may need to replay its log.
const startTimeout = 5 * time.Minute

// Start runs the single member of Dir and returns once it takes writes. It
// listens for peers on no port.
func Start(ctx context.Context, c Config) (*Member, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd directory: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = c.Name
	if cfg.Name == "" {
		cfg.Name = "knarr"
	}
	cfg.Dir = c.Dir
	cfg.WalDir = filepath.Join(c.Dir, "member", "wal")
	cfg.TickMs, cfg.ElectionMs = aloneTickMs, aloneElectionMs
	cfg.MaxRequestBytes = maxRequestBytes
	cfg.QuotaBackendBytes = c.QuotaBytes
	if cfg.QuotaBackendBytes == 0 {
		cfg.QuotaBackendBytes = 8 << 30
	}
	every := c.CompactEvery
	if every == 0 {
		every = 5 * time.Minute
	}
	cfg.AutoCompactionMode = embed.CompactorModePeriodic
	cfg.AutoCompactionRetention = every.String()
	cfg.SnapshotCount = 10000
	// A member alone talks to nobody; the address is a name in its own log.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, c.Clients
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2379"}}
	if len(c.AdvertiseClients) > 0 {
		cfg.AdvertiseClientUrls = c.AdvertiseClients
	} else if len(c.Clients) > 0 {
		cfg.AdvertiseClientUrls = c.Clients
	}
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.InitialClusterToken = "knarr"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger())

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		e.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	case <-ctx.Done():
		e.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, ctx.Err())
	}
	return &Member{e, v3client.New(e.Server)}, nil
}

// Client speaks to the member inside this process.
func (m *Member) Client() *clientv3.Client { return m.client }

// Run blocks until ctx ends, then stops the member; an error when the member
// stopped by itself.
func (m *Member) Run(ctx context.Context) error {
	defer m.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-m.etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-m.etcd.Server.StopNotify():
		return fmt.Errorf("etcd stopped by itself")
	}
}

// Close stops the member.
func (m *Member) Close() { m.etcd.Close() }

// logger passes on what an operator must know.
func logger() *zap.Logger {
	cfg := zap.NewProductionEncoderConfig()
	return zap.New(quiet{zapcore.NewCore(zapcore.NewConsoleEncoder(cfg), zapcore.Lock(os.Stderr), zapcore.ErrorLevel)})
}

// quiet drops an error that every first start logs and that means nothing: an
// empty store has no schema version yet.
type quiet struct{ zapcore.Core }

func (q quiet) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == "failed to update storage version" {
		return ce
	}
	return q.Core.Check(e, ce)
}
