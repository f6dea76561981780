package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"knarr/addons/gateway/route"
)

// A fakePlane notes what it is told.
type fakePlane struct {
	mu        sync.Mutex
	config    *route.Config
	endpoints map[string][]route.Endpoint
	applied   int
	failed    map[string]error // listeners and routes
}

func (p *fakePlane) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (p *fakePlane) Apply(c *route.Config) map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config, p.applied = c, p.applied+1
	result := map[string]error{}
	for _, l := range c.Listeners {
		result[l.Name] = nil
	}
	maps.Copy(result, p.failed)
	return result
}

// fail has listeners and routes fail from now on.
func (p *fakePlane) fail(these map[string]error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = these
}

func (p *fakePlane) compilations() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied
}

func (p *fakePlane) listeners() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.config.Listeners)
}

func (p *fakePlane) SetEndpoints(backend string, at []route.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints == nil {
		p.endpoints = map[string][]route.Endpoint{}
	}
	p.endpoints[backend] = at
}

// serves says, a line for each, which hosts and paths lead where.
func (p *fakePlane) serves() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, l := range p.config.Listeners {
		if l.Name != "ingress/http" {
			continue
		}
		for _, r := range l.Routes {
			for _, rule := range r.Rules {
				to := fmt.Sprint(rule.Status)
				for _, b := range rule.Backends {
					to = fmt.Sprint(b.Backend)
					for _, e := range p.endpoints[b.Backend] {
						to += " " + e.Address.String()
						if e.Terminating {
							to += " terminating"
						}
					}
				}
				lines = append(lines, fmt.Sprintf("%s%s -> %s", strings.Join(r.Hosts, ","), rule.Matches[0].Path, to))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// certificate is the name in the certificate of a host.
func (p *fakePlane) certificate(host string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.config.Listeners {
		if c := l.Names[host]; c != nil {
			return c.Leaf.Subject.CommonName
		}
	}
	return ""
}

var errTaken = errors.New("port 80 is taken")
