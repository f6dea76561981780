package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/connect"
	"knarr/controlplane/apiserver/metrics"
	"knarr/controlplane/apiserver/pieces"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/request"
	"knarr/controlplane/apiserver/serviceallocation"
	"knarr/controlplane/apiserver/watchcache"
)

// Config is what the handlers need. The zero value of a field means its
// default.
type Config struct {
	// Cache holds the objects of all stored kinds in Resources.
	Cache *watchcache.Cache
	// Resources is the API in discovery order.
	Resources []registry.Resource
	// Admission sees every write before it is stored. Default: admits all.
	Admission admission.Interface
	// Virtual answers the creation of kinds that are not stored, and of
	// subresources that are questions, by "resource.group" or
	// "resource.group/sub" (no ".group" for the core group).
	Virtual map[string]Virtual
	// Special serves subresources elsewhere, by "resource.group/sub". It wins
	// over the handlers here.
	Special map[string]http.Handler
	// Connect is how connections to kubelets and to what is proxied are opened;
	// what it reads and how it answers is filled in.
	Connect connect.Config
	// ServiceCIDRs are the ranges of cluster IPs, the first is the primary
	// family. Default 10.43.0.0/16.
	ServiceCIDRs []netip.Prefix
	// NodePorts is the range of node ports. Default 30000-32767.
	NodePorts serviceallocation.PortRange
	// Version is what /version answers. Default: v1.36.
	Version *version.Info
	// MinWatch is the shortest time a watch without timeoutSeconds lives; it
	// lives up to twice as long. Default 30 minutes.
	MinWatch time.Duration
	// Components says how the parts of the control plane are.
	Components func(context.Context) []corev1.ComponentStatus
	// Discards reports whether a user may do a verb, which deletes what cannot be
	// read. Default: nobody may.
	Discards func(ctx context.Context, verb string) (allowed bool, reason string, err error)
	// Changed, if set, is called when SetResources has changed the kinds served.
	Changed func()
	// Watches counts the events sent to watchers. Default: nothing does.
	Watches *metrics.Watches
	// WritesInFlight counts the writes on their way to the store, for the store to
	// group them. Default: a counter that nothing reads.
	WritesInFlight *atomic.Int64
	// Paths are other paths that GET / lists.
	Paths []string
}

// A Virtual answers the creation of obj, which it may change and return.
type Virtual func(ctx context.Context, obj registry.Object, opts *metav1.CreateOptions) (registry.Object, error)

// A Server is the handlers. It is safe for use by many.
type Server struct {
	cfg      Config
	table    atomic.Pointer[table]
	tableMu  sync.Mutex          // orders changes of table
	custom   []registry.Resource // those of SetResources
	remote   atomic.Pointer[Remote]
	merged   atomic.Pointer[merged]
	services *serviceallocation.Allocator
	connect  *connect.Server
	pieces   pieces.Cache // of long lists
}

// New makes the handlers; it starts nothing.
func New(cfg Config) (*Server, error) {
	boundCopies()
	if cfg.Admission == nil {
		cfg.Admission = admitAll{}
	}
	if cfg.MinWatch == 0 {
		cfg.MinWatch = 30 * time.Minute
	}
	if cfg.WritesInFlight == nil {
		cfg.WritesInFlight = new(atomic.Int64)
	}
	if cfg.Version == nil {
		cfg.Version = &version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}
	}
	if v := *cfg.Version; v.EmulationMajor == "" {
		// No other version is emulated; objects of the one before are understood.
		v.EmulationMajor, v.EmulationMinor, v.MinCompatibilityMajor, v.MinCompatibilityMinor = v.Major, v.Minor, v.Major, "35"
		cfg.Version = &v
	}
	s := &Server{cfg: cfg}
	s.SetResources(nil)
	cfg.Connect.EndpointSlices = s.storeOf(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"))
	cfg.Connect.WriteStatus = writeStatus
	s.connect = connect.New(cfg.Connect)
	var err error
	s.services, err = serviceallocation.New(serviceallocation.Config{
		Cache: cfg.Cache, Services: s.storeOf(corev1.SchemeGroupVersion.WithResource("services")),
		Addresses: s.storeOf(networkingv1.SchemeGroupVersion.WithResource("ipaddresses")),
		Ranges:    s.storeOf(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")),
		CIDRs:     cfg.ServiceCIDRs, NodePorts: cfg.NodePorts, WriteTime: writeTime,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// storeOf is where the objects of a resource are, nil if it is not served.
func (s *Server) storeOf(gvr schema.GroupVersionResource) *watchcache.Resource {
	if e := s.table.Load().entries[gvr]; e != nil {
		return e.store
	}
	return nil
}

// SetResources replaces the kinds served besides Config.Resources: those that
// CustomResourceDefinitions declare.
func (s *Server) SetResources(custom []registry.Resource) {
	s.tableMu.Lock()
	s.custom = custom
	s.renew()
	s.tableMu.Unlock()
	if s.cfg.Changed != nil {
		s.cfg.Changed()
	}
}

// renew makes the table anew of what has changed.
func (s *Server) renew() {
	all := append(s.cfg.Resources[:len(s.cfg.Resources):len(s.cfg.Resources)], s.custom...)
	s.table.Store(newTable(s, all, s.table.Load()))
}

// Handles says that the path is one of this handler's: an API group's that is
// served here, or one of discovery's and OpenAPI's.
func (s *Server) Handles(gv schema.GroupVersion) bool {
	return s.table.Load().versions[gv]
}

// Serves says that a resource, or a subresource of it, is served here.
func (s *Server) Serves(i *request.Info) bool {
	e := s.table.Load().entries[groupVersionResource(i)]
	return e != nil && (i.Subresource == "" || e.subs[i.Subresource] != nil)
}

// ServeHTTP serves one request. The context should hold request.Info and the
// user; the former is read from the URL when it does not.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		slog.ErrorContext(r.Context(), "panic in handler", "method", r.Method, "path", r.URL.Path,
			"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		writeStatus(w, r, apierrors.NewInternalError(fmt.Errorf("panic serving the request: %s %s", r.Method, r.URL.Path)))
	}()
	ctx := r.Context()
	info := request.InfoFrom(ctx)
	if info == nil {
		var err error
		if info, err = request.ParseInfo(r); err != nil {
			writeStatus(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		ctx = request.WithInfo(ctx, info)
	}
	if !request.HasWarnings(ctx) {
		ctx = request.WithWarnings(ctx, w.Header())
	}
	r = r.WithContext(ctx)
	if !info.IsResource {
		s.servePath(w, r)
		return
	}
	c := &call{s: s, w: w, r: r, ctx: ctx, info: info}
	err := c.serve()
	if c.release != nil {
		c.release()
	}
	if err != nil {
		writeStatus(w, r, err)
	}
}

// A call is one request for a resource on its way.
type call struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	ctx  context.Context
	info *request.Info

	*entry
	sub  *registry.Sub
	out  output
	vals url.Values

	body       []byte // the request's, once read
	bodyFormat format
	release    func()

	writes, inFlight bool // inFlight: it is counted as on its way to the store
}

// writeTime bounds one write; upstream's bound.
const writeTime = 34 * time.Second

func (c *call) serve() error {
	t := c.s.table.Load()
	c.entry = t.entries[groupVersionResource(c.info)]
	if c.entry == nil {
		if t.builtin[c.info.GroupVersion()] {
			return noResource()
		}
		http.NotFound(c.w, c.r)
		return nil
	}
	if c.custom != nil {
		for _, text := range c.custom.Notices() {
			request.Warn(c.ctx, text)
		}
	}
	if c.info.Subresource != "" {
		return c.serveSub()
	}
	if len(c.info.Parts) > 2 && c.info.Verb != "proxy" {
		return noResource()
	}
	if c.info.Name == "" && (c.info.Verb == "update" || c.info.Verb == "patch") {
		return c.notAllowed()
	}
	verb := c.info.Verb
	if verb == "list" || verb == "watch" || verb == "get" {
		// HEAD is a GET whose body net/http drops.
		if c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
			return c.notAllowed()
		}
	}
	if !c.res.Supports(verb) || c.r.Method == http.MethodPost && len(c.info.Parts) > 1 {
		return c.notAllowed()
	}
	if c.namespaced {
		// Writes need the namespace in the path; only lists and watches span
		// all of them.
		if c.info.Namespace == "" && verb != "list" && verb != "watch" {
			if c.custom != nil {
				http.NotFound(c.w, c.r)
				return nil
			}
			return c.notAllowed()
		}
	} else if c.info.Namespace != "" && c.custom != nil {
		http.NotFound(c.w, c.r)
		return nil
	} else if c.info.Namespace != "" && c.gvr.Resource != "namespaces" {
		return noResource()
	}
	if err := c.routed(); err != nil {
		return err
	}
	if c.deprecated != "" {
		request.Warn(c.ctx, c.deprecated)
	}
	if do := action(c.qualified); do != nil {
		return do(c)
	}
	if c.res.IsVirtual() {
		return c.serveVirtual(c.s.cfg.Virtual[c.qualified])
	}
	switch verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	}
	switch verb {
	case "create":
		return c.bounded((*call).create)
	case "update":
		return c.bounded((*call).update)
	case "patch":
		return c.bounded((*call).patch)
	case "delete":
		return c.bounded((*call).delete)
	case "deletecollection":
		return c.bounded((*call).deleteCollection)
	}
	return c.notAllowed()
}

// bounded does a write, in writeTime. A request whose own time is over first is
// given another message.
func (c *call) bounded(write func(*call) error) error {
	whole := c.ctx
	ctx, cancel := context.WithTimeout(whole, writeTime)
	defer cancel()
	c.ctx = ctx
	c.writes = true
	defer c.endWrite()
	err := write(c)
	if errors.Is(err, context.DeadlineExceeded) && whole.Err() == nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout - "+context.DeadlineExceeded.Error(), 0)
	}
	return err
}

// beginWrite counts a write on its way to the store, once its body is there: before that
// it may take its client's time.
func (c *call) beginWrite() {
	if c.writes && !c.inFlight {
		c.inFlight = true
		c.s.cfg.WritesInFlight.Add(1)
	}
}

func (c *call) endWrite() {
	if c.inFlight {
		c.inFlight = false
		c.s.cfg.WritesInFlight.Add(-1)
	}
}

func (c *call) notAllowed() error { return methodNotAllowed() }

func methodNotAllowed() error {
	err := statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

// noResource is a path in a version served that leads nowhere.
func noResource() error {
	err := statusError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	err.ErrStatus.Details = &metav1.StatusDetails{}
	return err
}

// query is the URL's parameters, parsed once.
func (c *call) query() url.Values {
	if c.vals == nil {
		c.vals = url.Values{}
		if c.r.URL.RawQuery != "" {
			c.vals = c.r.URL.Query()
		}
	}
	return c.vals
}

// key is where the object named in the URL is stored.
func (c *call) key() string { return c.keyOf(c.info.Namespace, c.info.Name) }

func (e *entry) keyOf(namespace, name string) string {
	if e.namespaced {
		return namespace + "/" + name
	}
	return name
}

func groupVersionResource(i *request.Info) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Group, Version: i.Version, Resource: i.Resource}
}
