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
}

func (d *dnsServer) flags(f *pflag.FlagSet) {
	d.client.flags(f)
	f.StringVar(&d.domain, "cluster-domain", "cluster.local", "`domain` of names in the cluster")
	f.StringVar(&d.resolv, "resolv-conf", "/etc/resolv.conf", "`file` that names the servers for other names")
	f.StringSliceVar(&d.listen, "listen", []string{"0.0.0.0:53"}, "`addresses` to answer on, UDP and TCP")
}

func (d *dnsServer) run(ctx context.Context) error {
	kube, err := d.config("dns")
	if err != nil {
		return err
	}
	cfg := dns.Config{Kube: kube, Domain: d.domain, ResolvConf: d.resolv}
	for _, s := range d.listen {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return fmt.Errorf("--listen: %q is not an address and port such as 10.0.0.1:53", s)
		}
		cfg.Listen = append(cfg.Listen, a)
	}
	srv, err := dns.New(cfg)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}
