package connect

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A relay sends one request on and its answer back. A connection is turned
// into a tunnel only after the backend has agreed to the upgrade (101); any
// other answer is passed on as an answer, so that a refused upgrade leaves no
// tunnel to the backend. Redirects are never followed.
type relay struct {
	target    url.URL
	transport http.RoundTripper
	// prefix is the path under which the client sees the backend; redirects
	// and links are rewritten to it. Empty: redirects are refused.
	prefix string
	// logOf is the pod whose log this is, if it is one: the answer's type is text
	// and failures become Status.
	logOf string
	// failure makes a Status of not reaching the backend.
	failure func(error) error
}

// credentials are never passed on: the backend is somebody else's.
var credentials = []string{"Authorization", "Cookie2", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid"}

func (l *relay) serve(c *connection) {
	proxy := &httputil.ReverseProxy{
		Transport:     l.transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			target := l.target
			p.Out.URL = &target
			p.Out.Host = target.Host
			for _, h := range credentials {
				p.Out.Header.Del(h)
			}
			for h := range p.Out.Header {
				if strings.HasPrefix(h, "Impersonate-") || strings.HasPrefix(h, "X-Remote-") {
					p.Out.Header.Del(h)
				}
			}
			if l.prefix != "" {
				p.Out.Header.Set("X-Forwarded-Uri", p.In.URL.Path)
				p.Out.Header.Set("X-Forwarded-Host", p.In.Host)
				scheme := "http"
				if p.In.TLS != nil {
					scheme = "https"
				}
				p.Out.Header.Set("X-Forwarded-Proto", scheme)
				if ip, _, err := net.SplitHostPort(p.In.RemoteAddr); err == nil {
					p.Out.Header.Set("X-Forwarded-For", ip)
				}
			}
		},
		ModifyResponse: l.check,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client has left
			}
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				err = l.failure(err)
			}
			c.s.cfg.WriteStatus(w, r, err)
		},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(c.w, c.r)
}

// errRedirect answers what no client may follow.
var errRedirect = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusBadGateway, Reason: metav1.StatusReasonUnknown,
	Message: "the backend attempted to redirect this request, which is not permitted"}}

// maxReason bounds what is read of a backend's refusal.
const maxReason = 2048

// noLog is what a client is told of a kubelet that gives no log: the kubelet's own
// words, such as which container is waiting to start, and for what.
func noLog(code int, pod, reason string) error {
	switch code {
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(reason)
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(reason))
	}
	return apierrors.NewGenericServerResponse(code, "", corev1.Resource("pods/log"), pod, reason, 0, false)
}

func (l *relay) check(resp *http.Response) error {
	if resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		if l.prefix == "" {
			return errRedirect
		}
	}
	if l.prefix != "" { // who may read an answer is not the backend's to say
		for _, h := range []string{"Credentials", "Headers", "Methods", "Origin"} {
			resp.Header.Del("Access-Control-Allow-" + h)
		}
	}
	if l.logOf == "" {
		return nil
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		if err != nil {
			return err
		}
		return noLog(resp.StatusCode, l.logOf, strings.TrimSpace(string(text)))
	}
	resp.Header.Set("Content-Type", "text/plain")
	resp.Header.Del("Content-Length")
	return nil
}
