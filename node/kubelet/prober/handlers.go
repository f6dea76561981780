package prober

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"knarr/node/kubelet/expansion"
)

// maxBody bounds what is kept of an answer.
const maxBody = 10 << 10

const userAgent = "kube-probe/1.36"

func (m *Manager) exec(ctx context.Context, t Target, a *corev1.ExecAction, timeout time.Duration) outcome {
	env := make(map[string]string, len(t.Container.Env))
	for _, e := range t.Container.Env {
		env[e.Name] = e.Value // as upstream: static values alone
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	left := expansion.Container
	command := make([]string, len(a.Command))
	for i, c := range a.Command {
		var err error
		if command[i], err = expansion.Expand(c, lookup, &left); err != nil {
			return outcome{err: err}
		}
	}
	out, code, err := m.Exec(ctx, t.ContainerID, command, timeout)
	text := string(out[:min(len(out), maxBody)])
	switch {
	case err == nil && code == 0:
		return outcome{ok: true, output: text}
	case err == nil:
		return outcome{output: text}
	case errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded:
		return outcome{output: fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command, " "), timeout)}
	}
	return outcome{err: err}
}

// Port resolves a port given by number or by name.
func Port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		n = 0
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				n = int(cp.ContainerPort)
			}
		}
		if n == 0 {
			var err error
			if n, err = strconv.Atoi(p.StrVal); err != nil {
				return 0, fmt.Errorf("couldn't find port: %v in %v", p.StrVal, c.Name)
			}
		}
	}
	if n <= 0 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", n)
	}
	return n, nil
}

// dialer leaves no socket in TIME-WAIT behind: probes are many.
func dialer() *net.Dialer {
	return &net.Dialer{Control: lingerZero}
}

// maxHeader bounds the header of what a container answers, in bytes.
const maxHeader = 64 << 10

var transport = &http.Transport{
	TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate of a probed container says nothing
	DisableKeepAlives:   true,
	Proxy:               nil,
	DisableCompression:  true,
	TLSHandshakeTimeout: 0,
	// A pod's answer takes memory of this process, which is not its own.
	MaxResponseHeaderBytes: maxHeader,
	DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialer().DialContext(ctx, network, addr)
	},
}

// Request builds the request of an HTTP handler.
func Request(ctx context.Context, a *corev1.HTTPGetAction, c *corev1.Container, podIP, agent string) (*http.Request, error) {
	port, err := Port(a.Port, c)
	if err != nil {
		return nil, err
	}
	host := a.Host
	if host == "" {
		host = podIP
	}
	scheme := strings.ToLower(string(a.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path}
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range a.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
		}
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", agent)
	}
	if _, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	return req, nil
}

func httpGet(ctx context.Context, t Target, a *corev1.HTTPGetAction, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := Request(ctx, a, t.Container, t.PodIP, userAgent)
	if err != nil {
		return outcome{err: err}
	}
	left := false // redirected to another host: not followed, only warned of
	client := Client(timeout)
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		err := sameHost(r, via)
		left = left || errors.Is(err, http.ErrUseLastResponse)
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return outcome{output: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return outcome{output: err.Error()}
	}
	if res.StatusCode >= 200 && res.StatusCode < 400 {
		if left || res.StatusCode >= 300 {
			return outcome{ok: true, warning: true, output: fmt.Sprintf("Probe terminated redirects, Response body: %s", bytes.TrimSpace(body))}
		}
		return outcome{ok: true, output: string(body)}
	}
	return outcome{output: fmt.Sprintf("HTTP probe failed with statuscode: %d", res.StatusCode)}
}

func tcp(ctx context.Context, t Target, a *corev1.TCPSocketAction, timeout time.Duration) outcome {
	port, err := Port(a.Port, t.Container)
	if err != nil {
		return outcome{err: err}
	}
	host := a.Host
	if host == "" {
		host = t.PodIP
	}
	d := dialer()
	d.Timeout = timeout
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return outcome{output: err.Error()}
	}
	_ = c.Close()
	return outcome{ok: true}
}

func grpcHealth(ctx context.Context, t Target, a *corev1.GRPCAction, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := net.JoinHostPort(t.PodIP, strconv.Itoa(int(a.Port)))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(userAgent),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBody)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	var server peer.Peer // is known if the call was sent: to a server that speaks HTTP/2, not one that only lets connections in
	res, err := healthpb.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, metadata.MD{}), &healthpb.HealthCheckRequest{Service: service},
		grpc.WaitForReady(true), grpc.Peer(&server))
	switch {
	case err == nil && res.Status == healthpb.HealthCheckResponse_SERVING:
		return outcome{ok: true, output: "service healthy"}
	case err == nil:
		return outcome{output: fmt.Sprintf("service unhealthy (responded with %q)", res.Status)}
	case status.Code(err) == codes.Unimplemented:
		return outcome{output: fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())}
	case status.Code(err) == codes.DeadlineExceeded && server.Addr != nil:
		return outcome{output: fmt.Sprintf("timeout: health rpc did not complete within %v", timeout)}
	case status.Code(err) == codes.DeadlineExceeded:
		return outcome{output: fmt.Sprintf("timeout: failed to connect service %q within %s: %s", addr, timeout, status.Convert(err).Message())}
	}
	return outcome{output: "error: health rpc probe failed: " + err.Error()}
}

// Client is how probes and hooks ask. It follows redirects within the host that was asked: a pod
// would have the node ask others that it cannot reach itself.
func Client(timeout time.Duration) *http.Client {
	return &http.Client{Transport: transport, Timeout: timeout, CheckRedirect: sameHost}
}

func sameHost(r *http.Request, via []*http.Request) error {
	if r.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}
