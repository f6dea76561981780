package alone

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"knarr/addons/dns"
)

type dnsServer struct {
	client
	domain, resolv string
	listen         []string
	metrics        []string
}

func (d *dnsServer) flags(f *pflag.FlagSet) {
	d.client.flags(f)
	f.StringVar(&d.domain, "cluster-domain", "cluster.local", "`domain` of names in the cluster")
	f.StringVar(&d.resolv, "resolv-conf", "/etc/resolv.conf", "`file` that names the servers for other names")
	f.StringSliceVar(&d.listen, "listen", []string{"0.0.0.0:53"}, "`addresses` to answer on, UDP and TCP")
	f.StringSliceVar(&d.metrics, "metrics-bind-address", nil, "`addresses` of /metrics, /health and /ready, such as 127.0.0.1:9153; none by default")
}

func (d *dnsServer) run(ctx context.Context) error {
	kube, err := d.config("dns")
	if err != nil {
		return err
	}
	cfg := dns.Config{Kube: kube, Domain: d.domain, ResolvConf: d.resolv}
	if cfg.Listen, err = addressPorts("listen", d.listen); err != nil {
		return err
	}
	if cfg.Metrics, err = addressPorts("metrics-bind-address", d.metrics); err != nil {
		return err
	}
	srv, err := dns.New(cfg)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}

// addressPorts are those of a flag.
func addressPorts(flag string, values []string) (all []netip.AddrPort, _ error) {
	for _, v := range values {
		a, err := netip.ParseAddrPort(v)
		if err != nil {
			return nil, fmt.Errorf("--%s: %q is not an address and port such as 10.0.0.1:53", flag, v)
		}
		all = append(all, a)
	}
	return all, nil
}
