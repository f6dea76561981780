package cluster

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"

	"knarr/addons/gateway"
	"knarr/addons/gateway/dataplane"
	"knarr/addons/gateway/tracing"
	"knarr/internal/flaghelp"
	"knarr/internal/run"
)

// gatewayOptions are the flags of a node's gateway: what it tells of the requests that it
// serves.
type gatewayOptions struct {
	GatewayMetrics   string
	GatewayAccessLog string
	GatewayTracing   string
	GatewaySampling  float64

	logFormat, logPath string
}

func (o *gatewayOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.GatewayMetrics, "gateway-metrics-bind-address", "127.0.0.1:10254", "`address` of the gateway's /metrics; empty: none")
	f.StringVar(&o.GatewayAccessLog, "gateway-access-log", "", "`format:path` of a line for each request: json or common, a file or stdout (default: none)")
	f.StringVar(&o.GatewayTracing, "gateway-tracing-endpoint", "", "`URL` of a collector of OpenTelemetry's, that takes OTLP over HTTP (default: none)")
	f.Float64Var(&o.GatewaySampling, "gateway-tracing-sampling", 0.01, "`ratio` of the traces that begin at the gateway that are sampled")
	flaghelp.Group(f, "Gateway")
}

func (o *gatewayOptions) validate(f *faults) {
	if o.GatewayMetrics != "" {
		if _, err := netip.ParseAddrPort(o.GatewayMetrics); err != nil {
			f.add("gateway-metrics-bind-address", "%q is not an address with a port, such as 127.0.0.1:10254", o.GatewayMetrics)
		}
	}
	if o.GatewayAccessLog != "" {
		var err error
		if o.logFormat, o.logPath, err = dataplane.ParseAccessLog(o.GatewayAccessLog); err != nil {
			f.add("gateway-access-log", "%v", err)
		}
	}
	if o.GatewayTracing != "" {
		if err := (tracing.Config{Endpoint: o.GatewayTracing}).Check(); err != nil {
			f.add("gateway-tracing-endpoint", "%v", err)
		}
	}
	if err := (tracing.Config{Endpoint: "http://unused", Ratio: o.GatewaySampling}).Check(); err != nil {
		f.add("gateway-tracing-sampling", "%v: %v", o.GatewaySampling, err)
	}
}

// gateway serves Ingresses at this node's ports.
func (n *node) gateway(ctx context.Context) error {
	if slices.Contains(n.facts.Disabled, ingressPart) {
		return n.noGateway(ctx)
	}
	o := &n.opts.gatewayOptions
	reset, err := n.resetKey()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	options := dataplane.Options{
		Listen: n.sockets.listenWhileOpen, ListenPacket: n.sockets.listenPacketWhileOpen,
		Inside: append(slices.Clone(n.facts.ClusterCIDRs), n.facts.ServiceCIDRs...), Metrics: registry, AccessFormat: o.logFormat, ResetKey: reset,
	}
	if o.logPath != "" {
		log, err := dataplane.OpenLog(o.logPath)
		if err != nil {
			return fmt.Errorf("--gateway-access-log: %w", err)
		}
		defer log.Close()
		options.AccessLog = log
	}
	if o.GatewayTracing != "" {
		if options.Tracer, err = tracing.New(tracing.Config{Endpoint: o.GatewayTracing, Ratio: o.GatewaySampling, Node: n.opts.NodeName}); err != nil {
			return fmt.Errorf("--gateway-tracing-endpoint: %w", err)
		}
	}
	g, err := gateway.New(gateway.Config{Kube: n.as.gateway, NodeName: n.opts.NodeName, Domain: n.facts.ClusterDomain, Inside: options.Inside, Plane: dataplane.New(options), Settled: n.dropPorts})
	if err != nil {
		return err
	}
	if o.GatewayMetrics != "" {
		var group run.Group
		defer group.Wait()
		serving, stop := context.WithCancel(ctx)
		defer stop()
		group.Go("gateway: metrics", func() { dataplane.ServeMetrics(serving, o.GatewayMetrics, registry) })
	}
	return g.Run(ctx)
}

// dropPorts lets go of the gateway's ports that an earlier process has held, was killed, and
// nothing needs any more.
func (n *node) dropPorts(of gateway.PortsOf) {
	n.sockets.dropUnused(func(_ string, at netip.AddrPort) bool { return of.Has(at.Port()) })
}

// noGateway lets go of what an earlier start has held, in a cluster that serves no Ingresses.
func (n *node) noGateway(ctx context.Context) error {
	n.dropPorts(gateway.Ingresses)
	n.dropPorts(gateway.Gateways)
	<-ctx.Done()
	return nil
}

// resetKey is the same in each process of this node: with it one tells clients of HTTP/3
// that the connections of the one before are gone.
func (n *node) resetKey() (*[32]byte, error) {
	key, err := nodeKey(n.layout)
	if err != nil {
		return nil, err
	}
	secret, err := key.Bytes()
	if err != nil {
		return nil, fmt.Errorf("key for resets of HTTP/3: %w", err)
	}
	made, err := hkdf.Key(sha256.New, secret, nil, "resets of HTTP/3", 32)
	if err != nil {
		return nil, fmt.Errorf("key for resets of HTTP/3: %w", err)
	}
	return (*[32]byte)(made), nil
}
