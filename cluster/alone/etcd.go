package alone

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/pflag"

	"knarr/controlplane/etcd"
)

type etcdMember struct {
	dir, name                    string
	clients, advertiseClientURLs []string
	peers                        []string
	noFsync                      bool
	quota                        int64
	downgradeTo                  string
}

func (e *etcdMember) flags(f *pflag.FlagSet) {
	f.StringVar(&e.dir, "data-dir", "default.etcd", "`directory` of the member")
	f.StringVar(&e.name, "name", "default", "`name` of the member")
	f.StringSliceVar(&e.clients, "listen-client-urls", []string{"http://127.0.0.1:2379"}, "`URLs` to answer clients on")
	f.StringSliceVar(&e.advertiseClientURLs, "advertise-client-urls", nil, "`URLs` told to clients (default: --listen-client-urls)")
	f.StringSliceVar(&e.peers, "listen-peer-urls", nil, "`URLs` to listen for peers on; a member alone has none and listens on none")
	f.BoolVar(&e.noFsync, "unsafe-no-fsync", false, "do not wait for the disk: what was acknowledged may be lost")
	f.Int64Var(&e.quota, "quota-backend-bytes", 0, "the most `bytes` the database may have (default 8 GiB)")
	f.StringVar(&e.downgradeTo, "downgrade-to", "", "leave the data to etcd of this older `version`, such as 3.6, and end")
}

func (e *etcdMember) run(ctx context.Context) error {
	cfg := etcd.Config{Dir: e.dir, Name: e.name, QuotaBytes: e.quota, UnsafeNoFsync: e.noFsync}
	if e.downgradeTo != "" {
		return e.downgrade(ctx, cfg)
	}
	var err error
	if cfg.Clients, err = urls("listen-client-urls", e.clients); err != nil {
		return err
	}
	if cfg.AdvertiseClients, err = urls("advertise-client-urls", e.advertiseClientURLs); err != nil {
		return err
	}
	m, err := etcd.Start(ctx, cfg)
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

// downgrade lets nobody write meanwhile: it listens on no port.
func (e *etcdMember) downgrade(ctx context.Context, cfg etcd.Config) error {
	m, err := etcd.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Downgrade(ctx, e.downgradeTo)
}

func urls(flag string, list []string) ([]url.URL, error) {
	var out []url.URL
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("--%s: %q is not a URL such as http://127.0.0.1:2379", flag, s)
		}
		out = append(out, *u)
	}
	return out, nil
}
