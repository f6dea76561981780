// Package server is what a kubelet answers over HTTPS: logs, exec, attach and
// port-forward of its containers, its pods, statistics and metrics. It reads
// pods through the host it is given, and asks the API server to authenticate and
// authorise requests.
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"knarr/internal/healthz"
	"knarr/internal/profiles"
	"knarr/internal/zpages"
	"knarr/node/kubelet/podlogs"
)

// A Host is the kubelet behind the server.
type Host interface {
	// Pods are the pods of the node with their newest status.
	Pods() []corev1.Pod
	// RunningPods are the pods the runtime runs.
	RunningPods() []corev1.Pod
	// Log finds the log of a container; running says whether it is written.
	Log(namespace, pod, container string, previous bool) (path string, running func(context.Context) bool, err error)
	// ExecURL, AttachURL and PortForwardURL ask the runtime for a stream.
	ExecURL(ctx context.Context, t Target) (string, error)
	AttachURL(ctx context.Context, t Target) (string, error)
	PortForwardURL(ctx context.Context, t Target) (string, error)
	// Run runs a command to its end.
	Run(ctx context.Context, t Target) ([]byte, error)
	// Checkpoint writes the state of a container into a file, for as many seconds as
	// timeout says, or the default's if these are more.
	Checkpoint(ctx context.Context, t Target, timeout int64) (path string, err error)
	// Summary is the statistics of the node and its pods.
	Summary(ctx context.Context, onlyCPUAndMemory bool) (any, error)
	// SharedImages answers other nodes that want images of this one; nil: none gets any.
	SharedImages() http.Handler
	// SystemLogs answers with logs of the node: paths without /logs/.
	SystemLogs() http.Handler
	// Health answers /healthz and what is below it.
	Health() http.Handler
	// Metrics are the handlers of metrics by path.
	Metrics() map[string]http.Handler
	// Configz is the configuration as others read it.
	Configz() any
	// Pages are those about the program.
	Pages() Pages
	// LogLevel sets how much the process logs.
	LogLevel(verbosity int)
}

// Pages are those about the program that are served.
type Pages struct {
	// Flags are the values of all flags, which /flagz shows; nil: there is no such page.
	Flags func() map[string]string
	// Status says whether there is /statusz.
	Status bool
}

// A Target is what a stream is made to.
type Target struct {
	Namespace, Pod, UID, Container string
	Command                        []string
	Stdin, Stdout, Stderr, TTY     bool
	Ports                          []int32
}

// An Error carries the HTTP status it is answered with.
type Error struct {
	Code int
	Err  error
}

func (e Error) Error() string { return e.Err.Error() }
func (e Error) Unwrap() error { return e.Err }

// NotFound is an Error of status 404.
func NotFound(format string, args ...any) error {
	return Error{http.StatusNotFound, fmt.Errorf(format, args...)}
}

// New returns the handler. auth nil lets everybody in.
func New(h Host, auth *Auth) http.Handler {
	s := &server{h}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /pods/{$}", s.pods)
	mux.HandleFunc("GET /runningpods/{$}", s.runningPods)
	mux.HandleFunc("GET /containerLogs/{ns}/{pod}/{container}", s.logs)
	for _, verb := range []string{"GET", "POST"} {
		for _, p := range []string{"{ns}/{pod}/{container}", "{ns}/{pod}/{uid}/{container}"} {
			mux.HandleFunc(verb+" /exec/"+p, s.stream(h.ExecURL))
			mux.HandleFunc(verb+" /attach/"+p, s.stream(h.AttachURL))
		}
		for _, p := range []string{"{ns}/{pod}", "{ns}/{pod}/{uid}"} {
			mux.HandleFunc(verb+" /portForward/"+p, s.stream(h.PortForwardURL))
		}
	}
	mux.HandleFunc("POST /run/{ns}/{pod}/{container}", s.run)
	mux.HandleFunc("POST /run/{ns}/{pod}/{uid}/{container}", s.run)
	mux.HandleFunc("POST /checkpoint/{ns}/{pod}/{container}", s.checkpoint)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("POST /stats/summary", s.summary)
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, h.Configz()) })
	mux.Handle(profiles.Root+"/", profiles.Handler())
	mux.HandleFunc(levelPath, s.level)
	mux.Handle("GET /logs/", http.StripPrefix("/logs/", h.SystemLogs()))
	if shared := h.SharedImages(); shared != nil {
		mux.Handle("GET "+sharedImages+"/", shared)
	}
	for p, m := range h.Metrics() {
		mux.Handle("GET "+p, m)
	}
	health(mux, h.Health())
	pages, paths := h.Pages(), []string{"/configz", "/healthz", "/metrics"}
	if pages.Flags != nil {
		mux.Handle("GET /flagz", zpages.Flagz(component, pages.Flags))
		paths = append(paths, "/flagz")
	}
	if pages.Status {
		mux.Handle("GET /statusz", zpages.Statusz(component, paths))
	}
	if auth == nil {
		return mux
	}
	return auth.protect(mux)
}

// component is what pages about the program call it.
const component = "kubelet"

// Healthz returns the handler of what everybody on the node itself may ask: whether the
// process answers, and nothing else.
func Healthz() http.Handler {
	mux := http.NewServeMux()
	health(mux, healthz.New(component, nil))
	return mux
}

func health(mux *http.ServeMux, h http.Handler) {
	mux.Handle("GET /healthz", h)
	mux.Handle("GET /healthz/{name}", h)
}

type server struct{ host Host }

func writeError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var e Error
	if errors.As(err, &e) {
		code = e.Code
	}
	http.Error(w, err.Error(), code)
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}

func podList(pods []corev1.Pod) corev1.PodList {
	l := corev1.PodList{Items: pods}
	l.Kind, l.APIVersion = "PodList", "v1"
	if l.Items == nil {
		l.Items = []corev1.Pod{}
	}
	return l
}

func (s *server) pods(w http.ResponseWriter, _ *http.Request) { writeJSON(w, podList(s.host.Pods())) }
func (s *server) runningPods(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, podList(s.host.RunningPods()))
}

func (s *server) summary(w http.ResponseWriter, r *http.Request) {
	only, _ := strconv.ParseBool(r.URL.Query().Get("only_cpu_and_memory"))
	v, err := s.host.Summary(r.Context(), only)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, v)
}

func target(r *http.Request) (t Target, err error) {
	q := r.URL.Query()
	t = Target{Namespace: r.PathValue("ns"), Pod: r.PathValue("pod"), UID: r.PathValue("uid"), Container: r.PathValue("container"), Command: q["command"]}
	on := func(names ...string) bool {
		for _, n := range names {
			if v := q.Get(n); v == "1" || v == "true" {
				return true
			}
		}
		return false
	}
	t.Stdin, t.Stdout, t.Stderr, t.TTY = on("input", "stdin"), on("output", "stdout"), on("error", "stderr"), on("tty")
	for _, list := range append(q["port"], q["ports"]...) {
		for _, p := range strings.Split(list, ",") {
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil || n == 0 {
				return t, Error{http.StatusBadRequest, fmt.Errorf("unable to parse %q as a port", p)}
			}
			t.Ports = append(t.Ports, int32(n))
		}
	}
	return t, nil
}

// stream asks the runtime for a stream and joins the client to it.
func (s *server) stream(ask func(context.Context, Target) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := target(r)
		if err != nil {
			writeError(w, err)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/exec") || strings.HasPrefix(r.URL.Path, "/attach") {
			if !t.Stdin && !t.Stdout && !t.Stderr {
				writeError(w, Error{http.StatusBadRequest, errors.New("you must specify at least 1 of stdin, stdout, stderr")})
				return
			}
			if t.TTY {
				t.Stderr = false // a terminal has one stream out
			}
		}
		if !httpstream.IsUpgradeRequest(r) { // the runtime keeps few streams that nobody has come for
			writeError(w, Error{http.StatusBadRequest, errors.New("Upgrade request required")}) //nolint:staticcheck // upstream's words
			return
		}
		at, err := ask(r.Context(), t)
		if err != nil {
			writeError(w, err)
			return
		}
		u, err := url.Parse(at)
		if err != nil {
			writeError(w, err)
			return
		}
		var h http.Handler = proxy.NewUpgradeAwareHandler(u, nil, false, true, responder{})
		// Runtimes speak SPDY; what WebSocket clients have beyond it is translated.
		switch {
		case wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
			h = translate.NewTunnelingHandler(h)
		case wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
			h = translate.NewStreamTranslatorHandler(u, nil, 0, translate.Options{Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr, Tty: t.TTY})
			w = slowReader{w}
		}
		h.ServeHTTP(w, r)
	}
}

type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) { writeError(w, err) }

func (s *server) run(w http.ResponseWriter, r *http.Request) {
	t, err := target(r)
	if err == nil {
		t.Command = strings.Split(r.FormValue("cmd"), " ")
		var out []byte
		if out, err = s.host.Run(r.Context(), t); err == nil {
			_, _ = w.Write(out)
			return
		}
	}
	writeError(w, err)
}

// Upstream's answers to a request for logs that cannot be served.
var (
	errLogQuery   = Error{http.StatusBadRequest, errors.New(`{"message": "Unable to decode query."}`)}
	errLogOptions = Error{http.StatusUnprocessableEntity, errors.New(`{"message": "Invalid request."}`)}
)

// logOptions reads the options of a log request.
func logOptions(q url.Values) (o podlogs.Options, previous bool, stream string, err error) {
	o = podlogs.Options{Tail: -1, Limit: -1}
	boolean := func(name string) bool {
		v := q.Get(name)
		return q.Has(name) && v != "0" && !strings.EqualFold(v, "false")
	}
	undecoded, invalid := false, false
	number := func(name string, least int64) (n int64, given bool) {
		if !q.Has(name) {
			return 0, false
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		undecoded = undecoded || err != nil
		invalid = invalid || n < least
		return n, true
	}
	o.Follow, o.Timestamps, previous = boolean("follow"), boolean("timestamps"), boolean("previous")
	switch tail := q.Get("tail"); tail { // the name that it had once
	case "":
	case "all":
		q.Del("tailLines")
	default:
		q.Set("tailLines", tail)
	}
	tail, few := number("tailLines", 0)
	if few {
		o.Tail = tail
	}
	if n, ok := number("limitBytes", 1); ok {
		o.Limit = n
	}
	n, since := number("sinceSeconds", 1)
	if since {
		o.Since = time.Now().Add(-time.Duration(n) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		t, err := time.Parse(time.RFC3339, v)
		undecoded = undecoded || err != nil
		invalid = invalid || since
		o.Since = t
	}
	stream = cmp.Or(q.Get("stream"), corev1.LogStreamAll)
	switch stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		invalid = invalid || few
	default:
		invalid = true
	}
	switch {
	case undecoded:
		err = errLogQuery
	case invalid:
		err = errLogOptions
	}
	return o, previous, stream, err
}

func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	o, previous, stream, err := logOptions(r.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	path, running, err := s.host.Log(r.PathValue("ns"), r.PathValue("pod"), r.PathValue("container"), previous)
	if err != nil {
		writeError(w, err)
		return
	}
	o.Running = running
	fw := &flusher{w: w, rc: http.NewResponseController(w)}
	var out, errw io.Writer = fw, fw
	switch stream {
	case corev1.LogStreamStdout:
		errw = nil
	case corev1.LogStreamStderr:
		out = nil
	}
	w.Header().Set("Content-Type", "text/plain")
	if !o.Follow {
		fw.rc = nil // flushed at the end anyway
	} else {
		_ = fw.rc.Flush()
	}
	if err := podlogs.Read(r.Context(), path, o, out, errw); err != nil && !fw.wrote {
		writeError(w, Error{http.StatusBadRequest, fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)})
	}
}

// flusher sends each line at once.
type flusher struct {
	w     io.Writer
	rc    *http.ResponseController
	wrote bool
}

func (f *flusher) Write(p []byte) (int, error) {
	f.wrote = true
	n, err := f.w.Write(p)
	if err == nil && f.rc != nil {
		err = f.rc.Flush()
	}
	return n, err
}
