// Command gateway measures knarr's data plane beside Traefik, Caddy and nginx, one after
// the other with the same client and backend on this machine: requests per second of
// processor time at 1 kB with connections that stay, and memory. It reads /proc, writes a
// Markdown table, and files in a temporary directory.
package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

var names = []string{"knarr", "traefik", "caddy", "nginx"}

func main() {
	var (
		rounds   = flag.Int("rounds", 3, "`number` of rounds")
		each     = flag.Duration("each", 3*time.Second, "`time` of one measurement")
		which    = flag.String("only", "", "`names`, comma separated, of contenders")
		scenario = flag.String("scenario", "", "measure only this `scenario`")
		traefik  = flag.String("traefik", "", "Traefik's `program` (default: built from its module)")
		caddy    = flag.String("caddy", "", "Caddy's `program` (default: built from its module)")
		nginx    = flag.String("nginx", "/usr/sbin/nginx", "nginx' `program`")
		out      = flag.String("out", "", "write the table to this `file` too")
		bare     = flag.String("bare", "", "be a proxy that only reads and writes, with these `arguments`")
		plane    = flag.String("plane", "", "be knarr's data plane with these `arguments`")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if f := strings.Fields(*plane); len(f) == 6 {
			return servePlane(f[0], f[1], f[2], f[3], f[4], f[5])
		}
		if f := strings.Fields(*bare); len(f) == 2 {
			return serveBare(ctx, f[0], f[1])
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		programs := map[string]string{"knarr": self, "traefik": *traefik, "caddy": *caddy, "nginx": *nginx, "bare": self}
		selected := names
		if *which != "" {
			selected = strings.Split(*which, ",")
		}
		for _, name := range selected {
			if programs[name] != "" {
				continue
			}
			if programs[name], err = build(ctx, name); err != nil {
				return err
			}
		}
		return measure(ctx, programs, selected, *scenario, *rounds, *each, *out)
	}()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// A scenario is one row of the table.
type scenario struct {
	name       string
	tls, http2 bool
}

var scenarios = []scenario{
	{"HTTP/1.1", false, false},
	{"HTTP/1.1 with TLS", true, false},
	{"HTTP/2 with TLS", true, true},
}

func measure(ctx context.Context, programs map[string]string, selected []string, only string, rounds int, each time.Duration, out string) error {
	dir, err := os.MkdirTemp("", "knarr-gateway-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = serveBackend(l) }()
	r := &rig{dir: dir, programs: programs, backend: l.Addr().String()}
	if err := r.writeCertificate(); err != nil {
		return err
	}
	var contenders []*contender
	defer func() {
		for _, c := range contenders {
			c.stop()
		}
	}()
	for _, name := range selected {
		if _, err := exec.LookPath(programs[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c, err := r.start(ctx, name, 0)
		if err != nil {
			return err
		}
		contenders = append(contenders, c)
	}
	figures := map[string]map[string][]float64{}
	put := func(row, name string, v float64) {
		if figures[row] == nil {
			figures[row] = map[string][]float64{}
		}
		figures[row][name] = append(figures[row][name], v)
	}
	for round := range rounds {
		for _, s := range scenarios {
			if only != "" && only != s.name {
				continue
			}
			for i := range contenders {
				c := contenders[(i+round)%len(contenders)]
				perCore, err := c.throughput(ctx, s, each)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", s.name, c.name, err)
				}
				put(s.name+", requests/s of one core", c.name, perCore)
				fmt.Fprintf(os.Stderr, "round %d: %s %s: %.0f\n", round+1, s.name, c.name, perCore)
				if s.name == "HTTP/1.1" {
					rate, added, err := r.halfLoad(ctx, c, each)
					if err != nil {
						return err
					}
					put("p99 that is added at half load, ms", c.name, added)
					put("half load, requests/s", c.name, rate)
					p50, p99, err := latency(ctx, load{address: c.at(false), connections: 20}, 10*time.Millisecond, each)
					if err != nil {
						return err
					}
					put("time of a request at 2,000/s, p50, µs", c.name, p50)
					put("time of a request at 2,000/s, p99, µs", c.name, p99)
				}
			}
		}
	}
	for _, c := range contenders {
		c.stop()
	}
	contenders = nil
	if only == "" {
		if err := memoryAndChange(ctx, r, selected, put); err != nil {
			return err
		}
	}
	table := markdown(figures, selected)
	fmt.Print(table)
	if out != "" {
		return os.WriteFile(out, []byte(table), 0o644)
	}
	return nil
}

// halfLoad asks at half of what a contender can, and the backend alone as often, and says
// how much longer the 99th of a hundred requests takes, in ms.
func (r *rig) halfLoad(ctx context.Context, c *contender, each time.Duration) (rate, added float64, err error) {
	limited, cancel := context.WithTimeout(ctx, each)
	most, err := load{address: c.at(false), connections: 32}.run(limited, 0, nil)
	cancel()
	if err != nil {
		return 0, 0, err
	}
	rate = float64(most) / each.Seconds() / 2
	const connections = 20
	pace := time.Duration(float64(connections) / rate * 1e9)
	_, through, err := latency(ctx, load{address: c.at(false), connections: connections}, pace, each)
	if err != nil {
		return 0, 0, err
	}
	_, direct, err := latency(ctx, load{address: r.backend, connections: connections}, pace, each)
	return rate, (through - direct) / 1e3, err
}

// memoryAndChange measures what many routes cost, and idle connections.
func memoryAndChange(ctx context.Context, r *rig, selected []string, put func(row, name string, v float64)) error {
	for _, name := range selected {
		var held [2]int64
		for i, routes := range []int{0, manyChanges} {
			c, err := r.start(ctx, name, routes)
			if err != nil {
				return err
			}
			held[i] = c.memory()
			c.stop()
		}
		put("memory of 5,000 routes, MB", name, float64(held[1]-held[0])/1e6)
	}
	for _, name := range selected {
		for _, encrypted := range []bool{false, true} {
			c, err := r.start(ctx, name, 0)
			if err != nil {
				return err
			}
			n, each, err := c.idleConnections(ctx, encrypted)
			c.stop()
			if err != nil {
				fmt.Fprintf(os.Stderr, "idle connections of %s: %v\n", name, err)
				continue
			}
			put(fmt.Sprintf("memory of an idle connection%s, kB", map[bool]string{true: " with TLS"}[encrypted]), name, each)
			fmt.Fprintf(os.Stderr, "%s: %d idle connections, %.1f kB each\n", name, n, each)
		}
	}
	if slices.Contains(selected, "knarr") {
		never, again := unused()
		put("memory of a data plane that serves nothing, kB", "knarr", never*1e3)
		put("the same after 5,000 routes are gone, kB", "knarr", again*1e3)
		p50, p99, err := changeLive(ctx)
		if err != nil {
			return err
		}
		put("a change among 5,000 routes is live after, p50, ms", "knarr", p50)
		put("a change among 5,000 routes is live after, p99, ms", "knarr", p99)
	}
	return nil
}

// throughput asks as fast as answers come, and says how many requests one second of the
// contender's processor time served.
func (c *contender) throughput(ctx context.Context, s scenario, each time.Duration) (float64, error) {
	l := load{address: c.at(s.tls), tls: s.tls, http2: s.http2, connections: 32}
	if s.http2 {
		l.connections, l.streams = 4, 16
	}
	for _, d := range []time.Duration{each / 4, each} { // the first one warms up
		limited, cancel := context.WithTimeout(ctx, d)
		before := c.cpu()
		n, err := l.run(limited, 0, nil)
		used := c.cpu() - before
		cancel()
		if err != nil || ctx.Err() != nil {
			return 0, errors.Join(err, ctx.Err())
		}
		if d == each {
			return float64(n) / used.Seconds(), nil
		}
	}
	return 0, nil
}

// latency asks in a pace, and says how long the requests took, in µs.
func latency(ctx context.Context, l load, pace, each time.Duration) (p50, p99 float64, err error) {
	limited, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	if _, err := l.run(limited, pace, func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, d)
	}); err != nil {
		return 0, 0, err
	}
	if len(all) == 0 {
		return 0, 0, errors.New("no request was answered")
	}
	slices.Sort(all)
	at := func(q float64) float64 { return float64(all[int(q*float64(len(all)-1))].Nanoseconds()) / 1e3 }
	return at(0.5), at(0.99), nil
}

func markdown(figures map[string]map[string][]float64, selected []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| median | %s |\n|---|%s\n", strings.Join(selected, " | "), strings.Repeat("---:|", len(selected)))
	rows := make([]string, 0, len(figures))
	for row := range figures {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row)
		var first float64
		for i, name := range selected {
			v := median(figures[row][name])
			switch {
			case len(figures[row][name]) == 0:
				b.WriteString(" |")
			case i == 0:
				first = v
				fmt.Fprintf(&b, " %s |", number(v))
			default:
				fmt.Fprintf(&b, " %s (%.2f×) |", number(v), first/cmp.Or(v, 1))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func number(v float64) string {
	if v < 100 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}

func (r *rig) writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench.example"}, DNSNames: []string{"bench.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	r.certificate, r.key = filepath.Join(r.dir, "cert.pem"), filepath.Join(r.dir, "key.pem")
	return errors.Join(
		os.WriteFile(r.certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
		os.WriteFile(r.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}
