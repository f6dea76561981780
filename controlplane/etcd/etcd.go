// Package etcd is the embedded member of the datastore. It reads and writes
// its own directory, and speaks with the members of other servers; the API
// server reaches it through an in-process client.
package etcd

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3compactor"
	"go.etcd.io/etcd/server/v3/features"
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
	// Network is how the member reaches others and is reached. Default: it is
	// alone, and listens to no peer.
	Network *Network
	// Join are the members of the cluster that an empty Dir is to join, this one
	// among them. Default: a cluster of its own.
	Join []Peer
	// UnsafeNoFsync acknowledges before the disk has it: for tests of others.
	UnsafeNoFsync bool
}

// A Network is what a member of several needs.
type Network struct {
	// URL is where the others reach this one, and where it listens: https, with
	// an address and a port.
	URL url.URL
	// CertFile and KeyFile are shown to the others, and CAFile signs theirs; all
	// of them bear the name User.
	CertFile, KeyFile, CAFile, User string
}

// A clock is how often the leader is heard and how long its silence is borne,
// in milliseconds.
type clock struct{ tick, election uint }

var (
	// While a member is alone nobody else's heartbeat can be late, so ticks are
	// short and it elects itself at once.
	alone = clock{10, 100}
	// Among several, silence must outlast what is no failure: a slow sync of a
	// disk, a pause of a machine. An election begins after one to two such
	// silences, so that writes go on within two seconds of a loss.
	networked = clock{75, 750}
)

// maxRequestBytes is what upstream lets etcd take in one request at most.
const maxRequestBytes = 3 << 20

// maxLearners bounds the members that are catching up at once.
const maxLearners = 4

// startTimeout is how long a member may need to replay its log.
const startTimeout = 5 * time.Minute

// Start runs the member of Dir and returns once it takes writes: one of several
// needs most of the others for that, and one that joins Promote.
func Start(ctx context.Context, c Config) (*Member, error) {
	if c.Name == "" {
		c.Name = "knarr"
	}
	m := &Member{cfg: c, grown: make(chan struct{}), full: make(chan struct{}, 1)}
	e, err := open(ctx, c)
	if err != nil {
		return nil, err
	}
	m.use(e)
	if c.Network != nil {
		close(m.grown)
	}
	return m, nil
}

// open runs what the configuration says until it takes writes.
func open(ctx context.Context, c Config) (*serving, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd directory: %w", err)
	}
	cfg, err := c.settings()
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	var peers []url.URL
	if c.Network != nil {
		peers = append(peers, c.Network.URL)
	}
	e, err := serve(cfg, peers, c.Clients)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	if len(c.Join) > 0 {
		// It is ready once it has told the others its name, which it tries every
		// seven seconds. Until then Promote tells when it can go on.
		return e, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-e.ReadyNotify():
		return e, nil
	case err = <-e.failed:
	case <-e.StopNotify():
		err = errStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	if removed(e) {
		err = ErrRemoved
	}
	e.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
}

// quota is how large the database may be.
func (c Config) quota() int64 {
	if c.QuotaBytes != 0 {
		return c.QuotaBytes
	}
	return 8 << 30
}

// behind is how many of the last writes stay in memory for members that are slow
// or away: they would else be sent the whole database. Nobody is when there are
// no others; who comes is sent it anyway.
func (c Config) behind() uint64 {
	if c.Network == nil {
		return 100
	}
	return etcdserver.DefaultSnapshotCatchUpEntries
}

// settings are etcd's own form of the configuration.
func (c Config) settings() (config.ServerConfig, error) {
	every := c.CompactEvery
	if every == 0 {
		every = 5 * time.Minute
	}
	cfg := config.ServerConfig{
		Name:                    c.Name,
		DataDir:                 c.Dir,
		DedicatedWALDir:         c.log(),
		MaxRequestBytes:         maxRequestBytes,
		QuotaBackendBytes:       c.quota(),
		AutoCompactionMode:      v3compactor.ModePeriodic,
		AutoCompactionRetention: every,
		SnapshotCount:           etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries:  c.behind(),
		MaxSnapFiles:            5,
		MaxWALFiles:             5,
		MaxTxnOps:               128,
		MaxConcurrentStreams:    math.MaxInt32,
		MaxLearners:             maxLearners,
		// Its checks want five seconds of peace after each change; ours, in Remove,
		// ask whether the others answer.
		StrictReconfigCheck:         false,
		PreVote:                     true,
		InitialElectionTickAdvance:  true,
		NewCluster:                  len(c.Join) == 0,
		InitialClusterToken:         "knarr",
		AuthToken:                   "simple",
		BcryptCost:                  10,
		TokenTTL:                    300,
		CompactHashCheckTime:        time.Minute,
		DowngradeCheckTime:          5 * time.Second,
		WarningApplyDuration:        100 * time.Millisecond,
		WarningUnaryRequestDuration: 300 * time.Millisecond,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(c.Name, nil),
		Metrics:                     "basic",
		UnsafeNoFsync:               c.UnsafeNoFsync,
		Logger:                      logger(c.Network != nil),
	}
	// A member alone talks to nobody; the address is a name in its own log.
	peer, times := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}, alone
	if n := c.Network; n != nil {
		peer, times = n.URL, networked
		cfg.PeerTLSInfo = transport.TLSInfo{
			CertFile: n.CertFile, KeyFile: n.KeyFile, TrustedCAFile: n.CAFile,
			ClientCertAuth:      true,
			AllowedCNs:          []string{n.User},
			SkipClientSANVerify: true, // a server may speak from another of its addresses
			Logger:              cfg.Logger,
		}
	}
	cfg.TickMs, cfg.ElectionTicks = times.tick, int(times.election/times.tick)
	cfg.PeerURLs = types.URLs{peer}
	cfg.ClientURLs = types.URLs{{Scheme: "http", Host: "127.0.0.1:2379"}}
	if len(c.AdvertiseClients) > 0 {
		cfg.ClientURLs = c.AdvertiseClients
	} else if len(c.Clients) > 0 {
		cfg.ClientURLs = c.Clients
	}
	if Initialized(c.Dir) {
		return cfg, nil // its members are in its log
	}
	members := []string{c.Name + "=" + peer.String()}
	if len(c.Join) > 0 {
		members = nil
		for _, p := range c.Join {
			members = append(members, p.Name+"="+p.URL)
		}
	}
	var err error
	cfg.InitialPeerURLsMap, err = types.NewURLsMap(strings.Join(members, ","))
	return cfg, err
}

func (c Config) log() string { return filepath.Join(c.Dir, "member", "wal") }

// Initialized reports whether a directory holds the log of a member.
func Initialized(dir string) bool {
	entries, err := os.ReadDir(Config{Dir: dir}.log())
	return err == nil && len(entries) > 0
}

// logger passes on what an operator must know. That others do not answer, etcd
// says many times a second; whoever watches the members says it once.
func logger(several bool) *zap.Logger {
	cfg := zap.NewProductionEncoderConfig()
	level := zapcore.ErrorLevel
	if several {
		level = zapcore.DPanicLevel
	}
	return zap.New(filteredLog{zapcore.NewCore(zapcore.NewConsoleEncoder(cfg), zapcore.Lock(os.Stderr), level)})
}

// filteredLog drops an error that every first start logs and that means nothing: an
// empty store has no schema version yet.
type filteredLog struct{ zapcore.Core }

func (q filteredLog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.Message == "failed to update storage version" {
		return ce
	}
	return q.Core.Check(e, ce)
}
