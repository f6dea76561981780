package dns

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"knarr/addons/dns/corefile"
	"knarr/internal/follow"
	"knarr/internal/informer"
	"knarr/internal/run"
)

const (
	corefileName  = "Corefile"
	configMapName = "coredns"
	customMapName = "coredns-custom"
	// Where the keys of the ConfigMaps are files, in CoreDNS' pods.
	configDir = "/etc/coredns/"
	customDir = "/etc/coredns/custom/"
)

// configuration is what is known of the ConfigMaps and of the node's resolver.
type configuration struct {
	reloading sync.Mutex // one after the other
	mu        sync.Mutex
	maps      map[string]*corev1.ConfigMap
	following bool // changes are used as they come
	resolv    []string
	ctx       context.Context // of Run
	wg        *run.Group
}

// configure follows the ConfigMaps and the resolver configuration until ctx ends,
// and returns when what there is of them is in use.
func (s *Server) configure(ctx context.Context, wg *run.Group) {
	c := &s.conf
	c.mu.Lock()
	c.ctx, c.wg = ctx, wg
	c.resolv = resolvServers(s.cfg.ResolvConf, s.cfg.Listen)
	s.search.Store(searchList(s.cfg.ResolvConf))
	if len(c.resolv) == 0 {
		slog.WarnContext(ctx, "DNS: the node's resolver configuration names no server to ask; names outside the cluster are not answered unless a Corefile forwards them", "file", s.cfg.ResolvConf)
	}
	c.mu.Unlock()
	s.loops.mu.Lock()
	s.loops.report = s.reportLoop
	s.loops.mu.Unlock()
	var synced []cache.InformerSynced
	for _, name := range []string{configMapName, customMapName} {
		inf := coreinformers.NewFilteredConfigMapInformer(s.client, serviceNamespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		})
		changed := func(m *corev1.ConfigMap) { s.hold(ctx, name, m) }
		reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { changed(o.(*corev1.ConfigMap)) },
			UpdateFunc: func(_, o any) { changed(o.(*corev1.ConfigMap)) },
			DeleteFunc: func(o any) {
				if _, ok := informer.Object(o).(*corev1.ConfigMap); ok {
					changed(nil)
				}
			},
		})
		if err != nil {
			slog.WarnContext(ctx, "watch the DNS configuration", "err", err)
			continue
		}
		synced = append(synced, reg.HasSynced)
		wg.Go("DNS: watch the configuration", func() { inf.RunWithContext(ctx) })
	}
	limited, cancel := context.WithTimeout(ctx, configurationTime)
	defer cancel()
	cache.WaitForCacheSync(limited.Done(), synced...)
	c.mu.Lock()
	c.following = true // what was there at the start is read once
	c.mu.Unlock()
	s.reload(ctx)
	wg.Go("DNS: follow the resolver configuration", func() { s.followResolver(ctx) })
}

// hold keeps a ConfigMap, and uses it unless that is still to come.
func (s *Server) hold(ctx context.Context, name string, m *corev1.ConfigMap) {
	s.conf.mu.Lock()
	if s.conf.maps == nil {
		s.conf.maps = map[string]*corev1.ConfigMap{}
	}
	s.conf.maps[name] = m
	following := s.conf.following
	s.conf.mu.Unlock()
	if following {
		s.reload(ctx)
		s.detectLoops()
	}
}

// reload uses the ConfigMaps as they are; what cannot be read leaves the
// configuration that is in use.
func (s *Server) reload(ctx context.Context) {
	s.conf.reloading.Lock()
	defer s.conf.reloading.Unlock()
	s.conf.mu.Lock()
	main, custom := s.conf.maps[configMapName], s.conf.maps[customMapName]
	s.conf.mu.Unlock()
	servers, problems, err := s.read(filesOf(main, custom))
	if err != nil {
		s.metrics.reloadFails.Inc()
		slog.ErrorContext(ctx, "DNS: the configuration cannot be read; the last one stays in use", "err", err)
		s.event(ctx, mapOf(main, custom, err.Error()), "InvalidCorefile", err.Error()+"; the last configuration that could be read stays in use")
		return
	}
	for _, p := range problems {
		slog.WarnContext(ctx, "DNS: a directive is left out", "file", p.File, "line", p.Line, "directive", p.Directive, "problem", p.Text)
		s.event(ctx, mapOf(main, custom, p.File), "InvalidDirective", p.String())
	}
	s.use(servers)
}

// filesOf are the texts of the ConfigMaps, by the paths that CoreDNS' pods have.
func filesOf(main, custom *corev1.ConfigMap) corefile.Files {
	files := corefile.Files{}
	if main != nil {
		for key, text := range main.Data {
			files[configDir+key] = text
		}
		if text, ok := main.Data[corefileName]; ok {
			files[corefileName] = text
			delete(files, configDir+corefileName)
		}
	}
	if custom != nil {
		for key, text := range custom.Data {
			files[customDir+key] = text
		}
	}
	return files
}

// use puts server blocks in the place of those before.
func (s *Server) use(servers []corefile.Server) {
	p := s.newPlan(servers)
	s.conf.mu.Lock()
	for _, f := range p.forwards {
		f.setUpstreams(s.conf.resolv)
	}
	old := s.plan.Swap(p)
	ctx, wg := s.conf.ctx, s.conf.wg
	s.conf.mu.Unlock()
	if p.verified && ctx != nil {
		s.watchPods(ctx)
	}
	if old == nil {
		return
	}
	if wg == nil {
		old.close()
		return
	}
	wg.Go("DNS: end a configuration", old.close)
}

// watchPods makes pods known, once that is asked for.
func (s *Server) watchPods(ctx context.Context) {
	if s.records.pods.Load() != nil {
		return
	}
	inf := s.watches.Core().V1().Pods().Informer()
	err := s.watches.Index(inf, byAddress, func(o any) (addrs []string, _ error) {
		for _, ip := range o.(*corev1.Pod).Status.PodIPs {
			addrs = append(addrs, ip.IP)
		}
		return addrs, nil
	})
	if err == nil {
		_, err = s.watches.Handle(inf, s.records.changes.handler())
	}
	if err != nil {
		slog.WarnContext(ctx, "watch pods for DNS", "err", err)
		return
	}
	s.records.pods.Store(&podIndex{inf.GetIndexer(), inf.HasSynced})
	s.watches.Start(ctx)
}

func (s *Server) detectLoops() {
	for _, f := range s.plan.Load().forwards {
		f.detectLoops()
	}
}

// followResolver uses the resolver configuration as it changes, and what a link
// leads to, as systemd-resolved's does.
func (s *Server) followResolver(ctx context.Context) {
	changed := func() time.Duration {
		now := resolvServers(s.cfg.ResolvConf, s.cfg.Listen)
		s.search.Store(searchList(s.cfg.ResolvConf))
		s.conf.mu.Lock()
		same := equal(now, s.conf.resolv)
		s.conf.resolv = now
		if !same {
			for _, f := range s.plan.Load().forwards {
				f.setUpstreams(now)
			}
		}
		s.conf.mu.Unlock()
		if !same {
			slog.InfoContext(ctx, "DNS: the node's resolver configuration has changed", "servers", now)
			s.detectLoops()
		}
		return 0
	}
	var wg run.Group
	defer wg.Wait()
	files := []string{s.cfg.ResolvConf}
	if to, err := filepath.EvalSymlinks(s.cfg.ResolvConf); err == nil && filepath.Dir(to) != filepath.Dir(s.cfg.ResolvConf) {
		files = append(files, to)
	}
	for _, file := range files {
		wg.Go("DNS: follow a resolver configuration", func() {
			if err := follow.File(ctx, file, changed); err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "follow the resolver configuration", "file", file, "err", err)
			}
		})
	}
}
