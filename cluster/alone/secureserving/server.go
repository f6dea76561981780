package secureserving

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_*
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // rest_client_*
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // workqueue_*

	"knarr/internal/buildinfo"
	"knarr/internal/delegation"
	"knarr/internal/healthz"
	"knarr/internal/profiles"
	"knarr/internal/run"
	"knarr/internal/zpages"
)

// A Component is what is served.
type Component struct {
	// Name is the component's as upstream calls it; the files in --cert-dir are named
	// for it.
	Name string
	// Config is what /configz shows, by group.
	Config map[string]any
	// Metrics are further ones, by path below /metrics.
	Metrics map[string]prometheus.Gatherer
	// Checks are those of a path, which is healthz, livez or readyz. Default: that it
	// answers.
	Checks func(path string) []healthz.Check
	// Flags are the values of all flags, which /flagz shows.
	Flags func() map[string]string
	// NoFlagz and NoStatusz leave those pages out.
	NoFlagz, NoStatusz bool
}

// With runs work while the port is served; it begins once the port is open, and the
// first of the two to fail ends both.
func (o *Options) With(ctx context.Context, c Component, work func(context.Context) error) error {
	open := make(chan struct{})
	return run.All(ctx,
		run.Func("secure port", func(ctx context.Context) error { return o.Run(ctx, c, sync.OnceFunc(func() { close(open) })) }),
		run.Func(c.Name, func(ctx context.Context) error {
			select {
			case <-open:
				return work(ctx)
			case <-ctx.Done():
				return nil
			}
		}))
}

// Run serves until ctx ends. Ready is called once the port is open, so that nothing
// begins that cannot be seen.
func (o *Options) Run(ctx context.Context, c Component, ready func()) error {
	if o.Port == 0 {
		ready()
		<-ctx.Done()
		return nil
	}
	cert, err := o.certificate(c.Name)
	if err != nil {
		return err
	}
	delegator, authorities, err := o.delegator(ctx)
	if err != nil {
		return err
	}
	if delegator.Authorization == nil {
		slog.InfoContext(ctx, "--authorization-kubeconfig is not given: only system:masters sees more than health", "component", c.Name)
	}
	suites, err := cipherSuites(o.CipherSuites)
	if err != nil {
		return err
	}
	chosen, err := o.choose(cert)
	if err != nil {
		return err
	}
	if o.Profiling && o.Contention {
		runtime.SetBlockProfileRate(1)
	}
	protocols := []string{"h2", "http/1.1"}
	if o.NoHTTP2 {
		protocols = protocols[1:]
	}
	ln, err := o.listenConfig().Listen(ctx, "tcp", net.JoinHostPort(o.Address, strconv.Itoa(o.Port)))
	if err != nil {
		return fmt.Errorf("--secure-port: %w", err)
	}
	srv := &http.Server{
		Handler: o.protect(delegator, c.handler(o)),
		TLSConfig: &tls.Config{MinVersion: tlsVersions[o.MinVersion], CipherSuites: suites, GetCertificate: chosen,
			ClientAuth: tls.RequestClientCert, NextProtos: protocols, CurvePreferences: o.curves()},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: cmp.Or(o.Streams, 250)},
		ReadHeaderTimeout: 32 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	var wg run.Group
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go("secure port: look up authorities", func() { authorities.follow(ctx) })
	wg.Go("secure port: close", func() { <-ctx.Done(); _ = srv.Close() })
	ready()
	if err := srv.ServeTLS(ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("secure port: %w", err)
	}
	return nil
}

// handler serves the component's paths.
func (c Component) handler(o *Options) http.Handler {
	mux := http.NewServeMux()
	var paths []string
	handle := func(path string, h http.Handler) {
		mux.Handle("GET "+path, h)
		paths = append(paths, path)
	}
	h := healthz.New(c.Name, c.Checks)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		handle(path, h)
		mux.Handle("GET "+path+"/{name...}", h)
	}
	metrics := func(g prometheus.Gatherer) http.Handler {
		return promhttp.HandlerFor(o.Metrics.gatherer(g), promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	}
	buildinfo.Register()
	handle("/metrics", metrics(legacyregistry.DefaultGatherer))
	handle("/metrics/slis", metrics(h.Metrics()))
	for path, m := range c.Metrics {
		handle("/metrics/"+path, metrics(m))
	}
	handle("/configz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(c.Config)
	}))
	if o.Profiling { // which upstream does not list either
		mux.Handle(profiles.Root+"/", profiles.Handler())
	}
	if c.Flags != nil && !c.NoFlagz {
		handle("/flagz", zpages.Flagz(c.Name, c.Flags))
	}
	if !c.NoStatusz {
		mux.Handle("GET /statusz", zpages.Statusz(c.Name, paths))
	}
	return mux
}

// protect lets requests through that the API server allows. Who is not known is
// system:anonymous, as at the API server itself; an administrator's certificate is
// enough where no API server answers.
func (o *Options) protect(d *delegation.Delegator, next http.Handler) http.Handler {
	var trouble troubleLog
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache, private")
		if o.open(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		u, ok, err := d.Authenticate(r)
		if err != nil {
			trouble.log(r.Context(), "the API server cannot be asked who sends a request", "--authentication-kubeconfig", err)
			refuse(w, apierrors.NewInternalError(errors.New("the API server cannot be asked who this is")))
			return
		}
		if !ok && r.Header.Get("Authorization") != "" {
			refuse(w, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		if !ok {
			u = authenticationv1.UserInfo{Username: "system:anonymous", Groups: []string{"system:unauthenticated"}}
		}
		verb := strings.ToLower(r.Method)
		if !slices.Contains(u.Groups, "system:masters") {
			allowed, err := d.Authorize(r.Context(), u, nil, &authorizationv1.NonResourceAttributes{Verb: verb, Path: r.URL.Path})
			if err != nil {
				trouble.log(r.Context(), "the API server cannot be asked for a permission", "--authorization-kubeconfig", err)
				refuse(w, apierrors.NewInternalError(errors.New("the API server cannot be asked for permission")))
				return
			}
			if !allowed {
				denied := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
				denied.ErrStatus.Message = fmt.Sprintf("forbidden: User %q cannot %s path %q", u.Username, verb, r.URL.Path)
				denied.ErrStatus.Details = &metav1.StatusDetails{}
				refuse(w, denied)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// A troubleLog logs the same trouble once a minute: anybody can send requests.
type troubleLog struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (l *troubleLog) log(ctx context.Context, what, flag string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.last[what]) > time.Minute {
		if l.last == nil {
			l.last = map[string]time.Time{}
		}
		l.last[what] = now
		slog.WarnContext(ctx, what, "flag", flag, "err", err)
	}
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(&status)
}

// client reaches the API server that a kubeconfig names; nil without one.
func client(flag, file string) (kubernetes.Interface, error) {
	if file == "" {
		return nil, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return c, nil
}
