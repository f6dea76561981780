package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/etcd"
	"knarr/controlplane/kine"
	"knarr/internal/programs"
	"knarr/internal/run"
)

// datastoreOptions say what the cluster is kept in, if not in the embedded etcd.
type datastoreOptions struct {
	Endpoint, CAFile, CertFile, KeyFile string

	database kine.Endpoint
	etcd     []string // URLs of one elsewhere
}

func (d *datastoreOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&d.Endpoint, "datastore-endpoint", "", "`address` of an etcd elsewhere (https://host:2379,…) or of a SQL database: sqlite, sqlite://PATH, postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE (default: etcd in this process; also KNARR_DATASTORE_ENDPOINT, which the list of processes does not show)")
	f.StringVar(&d.CAFile, "datastore-cafile", "", "`file` of who signed the datastore's certificate")
	f.StringVar(&d.CertFile, "datastore-certfile", "", "`file` of the certificate shown to the datastore")
	f.StringVar(&d.KeyFile, "datastore-keyfile", "", "`file` of its key")
}

// validate completes the options. An address is not repeated: there may be a
// password in it.
func (d *datastoreOptions) validate(f *faults, dir string) {
	if d.Endpoint == "" {
		d.Endpoint = os.Getenv("KNARR_DATASTORE_ENDPOINT")
	}
	for _, file := range []struct{ flag, name string }{
		{"datastore-cafile", d.CAFile}, {"datastore-certfile", d.CertFile}, {"datastore-keyfile", d.KeyFile},
	} {
		if file.name == "" {
			continue
		}
		if d.Endpoint == "" {
			f.add(file.flag, "the embedded etcd has no use for it; give --datastore-endpoint too, or leave it out")
		} else if _, err := os.Stat(file.name); err != nil {
			f.add(file.flag, "%v; give a file in PEM form", err)
		}
	}
	if (d.CertFile == "") != (d.KeyFile == "") {
		f.add("datastore-certfile", "a certificate and its key belong together; give --datastore-keyfile too, or neither")
	}
	switch {
	case d.Endpoint == "":
	case strings.HasPrefix(d.Endpoint, "http://"), strings.HasPrefix(d.Endpoint, "https://"):
		d.etcd = strings.Split(d.Endpoint, ",")
	default:
		var err error
		if d.database, err = kine.ParseEndpoint(d.Endpoint, stateFile(dir)); err != nil {
			f.add("datastore-endpoint", "%v", err)
		}
	}
}

func stateFile(dir string) string { return filepath.Join(dir, "server", "db", "state.db") }

// kind is what a data directory remembers of its datastore: one that is another
// by mistake would be an empty cluster, whose nodes remove all pods.
func (d *datastoreOptions) kind() string {
	switch {
	case d.Endpoint == "":
		return ""
	case d.etcd != nil:
		return "etcd"
	}
	return d.database.Scheme
}

// A datastore is what the API server keeps everything in.
type datastore struct {
	store  *storage.Etcd
	member *etcd.Member // nil for one outside this process
	run    func(context.Context) error
	close  func()
}

// openDatastore opens what the options say.
func (s *Server) openDatastore(ctx context.Context) (*datastore, error) {
	d := &s.opts.datastore
	switch d.kind() {
	case "":
		m, err := s.openStore(ctx)
		if m == nil {
			return nil, err
		}
		return &datastore{storage.NewEmbedded(m), m, func(ctx context.Context) error { return s.whyRemoved(m.Run(ctx)) }, m.Close}, err
	case "etcd":
		c, err := storage.Dial(ctx, storage.Remote{Endpoints: d.etcd, CAFile: d.CAFile, CertFile: d.CertFile, KeyFile: d.KeyFile})
		if err != nil {
			return nil, fmt.Errorf("--datastore-endpoint: %w", err)
		}
		store := storage.NewEtcd(c)
		return &datastore{store, nil, func(ctx context.Context) error { <-ctx.Done(); return store.Close() }, func() { _ = store.Close() }}, nil
	}
	program, err := programs.Unpack(s.layout.programs(), programs.Kine)
	if err != nil {
		return nil, fmt.Errorf("--datastore-endpoint: %w", err)
	}
	c, err := kine.Start(ctx, kine.Config{Program: program, Endpoint: d.database, CAFile: d.CAFile, CertFile: d.CertFile, KeyFile: d.KeyFile})
	if err != nil {
		return nil, fmt.Errorf("--datastore-endpoint: %w", err)
	}
	slog.InfoContext(ctx, "the cluster is kept in a database", "datastore", d.database.String())
	return &datastore{storage.NewEmbedded(c), nil, c.Run, func() { _ = c.Close() }}, nil
}

// serve runs the datastore until ctx ends. The embedded etcd forgets history by
// itself; any other is asked to.
func (d *datastore) serve(ctx context.Context) error {
	if d.member != nil {
		return d.run(ctx)
	}
	forgotten := make(chan struct{})
	run.Go("compaction", func() {
		defer close(forgotten)
		storage.Forget(ctx, d.store, storage.History)
	})
	err := d.run(ctx)
	<-forgotten
	return err
}

// several is closed once other servers may be there, which only the embedded
// etcd lets in.
func (s *Server) several() <-chan struct{} {
	if s.member == nil {
		return nil
	}
	return s.member.Grown()
}

// errAlone refuses servers that would join.
var errAlone = errors.New("this server's cluster is kept in --datastore-endpoint, and further servers join the embedded etcd only")
