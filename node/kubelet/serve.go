package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"knarr/internal/delegation"
	"knarr/internal/headerlimit"
	"knarr/internal/keypair"
	"knarr/internal/logonce"
	"knarr/node/kubelet/certificates"
	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/logquery"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podstatus"
	"knarr/node/kubelet/runtimestate"
	"knarr/node/kubelet/server"
)

// Any pod reaches the kubelet's port, and who it is comes after what it sends first: so many
// connections there are on which nobody was let in. A header may have the command of an exec
// in its address, whose longest argument Linux bounds likewise.
const (
	maxConnections = 2000
	maxHeader      = 128 << 10
)

// serve answers requests until ctx ends.
func (k *Kubelet) serve(ctx context.Context) error {
	ln := k.cfg.Listener
	if ln == nil {
		var err error
		if ln, err = net.Listen("tcp", k.cfg.Listen); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	cert, err := k.certificate(ctx)
	if err != nil {
		ln.Close()
		return fmt.Errorf("kubelet: serving certificate: %w", err)
	}
	settings := k.cfg.Settings
	version, err := configuration.TLSVersion(settings.TLSMinVersion)
	if err != nil {
		ln.Close()
		return fmt.Errorf("kubelet: %w", err)
	}
	suites, err := configuration.CipherSuites(settings.TLSCipherSuites)
	if err != nil {
		ln.Close()
		return fmt.Errorf("kubelet: %w", err)
	}
	tc := &tls.Config{MinVersion: version, CipherSuites: suites, GetCertificate: cert, NextProtos: []string{"h2", "http/1.1"}}
	for _, curve := range settings.TLSCurvePreferences {
		tc.CurvePreferences = append(tc.CurvePreferences, tls.CurveID(curve))
	}
	k.askClients(tc)
	srv := &http.Server{
		Handler:           k.metrics.count(k.serving()),
		TLSConfig:         tc,
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    maxHeader,
		IdleTimeout:       90 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slogLogger(),
	}
	var seen logonce.Filter
	closed := func(why string, client netip.Addr) {
		if seen.IsNew(why, client.String()) {
			slog.Warn("kubelet: "+why, "client", client)
		}
	}
	k.wg.Go("kubelet: close the server", func() {
		<-ctx.Done()
		_ = srv.Close()
	})
	if err := srv.ServeTLS(headerlimit.Bound(srv, ln, maxConnections, closed), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("kubelet: serve: %w", err)
	}
	return nil
}

// serving answers requests, of whom the settings let in, as far as they want it.
func (k *Kubelet) serving() http.Handler {
	s := k.cfg.Settings
	auth := &server.Auth{
		Delegator: &delegation.Delegator{
			Authentication: k.client, Authorization: k.client, ClientCA: k.clientCA.Load,
			TokenTTL: s.Authentication.Webhook.CacheTTL.Duration,
			AllowTTL: s.Authorization.Webhook.CacheAuthorizedTTL.Duration, DenyTTL: s.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		},
		Node: k.cfg.NodeName, Anonymous: *s.Authentication.Anonymous.Enabled,
		AlwaysAllow: s.Authorization.Mode == kubeletconfig.KubeletAuthorizationModeAlwaysAllow,
	}
	if !*s.Authentication.Webhook.Enabled {
		auth.Authentication = nil
	}
	if *s.EnableDebuggingHandlers && *s.EnableProfilingHandler && s.EnableContentionProfiling {
		runtime.SetBlockProfileRate(1) // of the process: what else is in it is recorded too
	}
	return server.Restrict(server.New(host{k}, auth), server.Limits{
		NoDebugging: !*s.EnableDebuggingHandlers, NoSystemLogs: !*s.EnableSystemLogHandler, NoProfiles: !*s.EnableProfilingHandler,
		NoFlags: !*s.EnableDebugFlagsHandler || k.cfg.LogLevel == nil})
}

func slogLogger() *log.Logger { return slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug) }

// certificate gives the serving certificate: one that the API server was asked for, and
// the files' newest content until it is issued; these files alone; or one made here.
func (k *Kubelet) certificate(ctx context.Context) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if k.cfg.Settings.ServerTLSBootstrap {
		s := certificates.Server{NodeName: k.cfg.NodeName, Dir: k.cfg.CertDir, CertFile: k.cfg.CertFile, KeyFile: k.cfg.KeyFile, Client: k.client, Addresses: k.nodeAddresses}
		get, err := s.Run(ctx)
		return warnUnapproved(get), err
	}
	if k.cfg.CertFile == "" {
		c, err := selfSigned(k.cfg.Hostname, k.cfg.NodeIPs)
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, err }, err
	}
	pair, err := keypair.Open(k.cfg.CertFile, k.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	return pair.Serving, nil
}

// unapprovedAgain is how often the log has it that there is no certificate to serve with.
const unapprovedAgain = time.Minute

// warnUnapproved logs that clients are refused for want of a certificate, and the cure.
func warnUnapproved(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	var mu sync.Mutex
	var logged time.Time
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := get(hello)
		if err == nil {
			return c, nil
		}
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); logged.IsZero() || now.Sub(logged) >= unapprovedAgain {
			logged = now
			slog.Warn("no client can connect to the kubelet until its certificate signing request is approved; approve it: kubectl certificate approve NAME",
				"err", err, "names", "kubectl get csr --field-selector spec.signerName="+certificatesv1.KubeletServingSignerName)
		}
		return nil, err
	}
}

func selfSigned(name string, ips []net.IP) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		DNSNames: []string{name}, IPAddresses: ips,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// host answers the server from the workers.
type host struct{ k *Kubelet }

// SharedImages are those that everybody may have.
func (h host) SharedImages() http.Handler {
	if h.k.cfg.ShareImages == nil {
		return nil
	}
	return h.k.cfg.ShareImages(h.k.isPublic)
}

// isPublic says whether everybody may have an image: neither a pod's credentials nor the
// node's were needed for it, as far as can be told.
func (k *Kubelet) isPublic(image, id string) bool {
	return k.plugins == nil && len(k.nodeCredentials.of(repository(image), k.cfg.RootDir)) == 0 && k.records.Public(image, id)
}

func (h host) find(namespace, name, uid string) (*shown, bool) {
	var found *shown
	for _, w := range h.k.all() {
		s := w.shown.Load()
		if s.pod.Namespace != namespace || s.pod.Name != name || uid != "" && string(s.pod.UID) != uid && s.pod.Annotations[annConfigMirror] != uid {
			continue
		}
		if found == nil || found.ended { // a new pod of the same name comes first
			found = s
		}
	}
	return found, found != nil
}

func (h host) Pods() (out []corev1.Pod) {
	for _, w := range h.k.all() {
		s := w.shown.Load()
		p := *s.pod
		p.Status = *s.status
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

func (h host) RunningPods() (out []corev1.Pod) {
	for _, w := range h.k.all() {
		s := w.shown.Load()
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.pod.Name, Namespace: s.pod.Namespace, UID: s.pod.UID}}
		if s.observed == nil {
			continue
		}
		for _, c := range s.observed.Running() {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c.Name(), Image: c.Image.GetImage()})
		}
		if len(p.Spec.Containers) > 0 {
			out = append(out, p)
		}
	}
	return out
}

func (h host) Log(namespace, pod, name string, previous bool) (string, func(context.Context) bool, error) {
	s, ok := h.find(namespace, pod, "")
	if !ok {
		return "", nil, server.NotFound("pod %q does not exist", pod)
	}
	if c, _ := podspec.FindContainer(s.pod, name); c == nil {
		return "", nil, server.NotFound("container %q not found in pod %q", name, pod)
	}
	id, err := logID(s, name, previous)
	if err != nil {
		return "", nil, server.Error{Code: http.StatusBadRequest, Err: err}
	}
	var path string
	if s.observed != nil {
		if c := s.observed.ByID(id); c != nil {
			path = c.LogPath
		}
	}
	if path == "" {
		res, err := h.k.runtime.ContainerStatus(h.k.ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return "", nil, server.Error{Code: http.StatusBadRequest, Err: fmt.Errorf("unable to retrieve container logs for %s://%s", h.k.runtimeName(), id)}
		}
		path = res.Status.LogPath
	}
	return path, func(ctx context.Context) bool {
		res, err := h.k.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		return err == nil && res.Status.State == cri.ContainerState_CONTAINER_RUNNING
	}, nil
}

// logID is the container whose log is meant, in the words users get when
// there is none.
func logID(s *shown, name string, previous bool) (string, error) {
	pod := s.pod.Name
	var cs *corev1.ContainerStatus
	for _, l := range [][]corev1.ContainerStatus{s.status.ContainerStatuses, s.status.InitContainerStatuses, s.status.EphemeralContainerStatuses} {
		if c := podstatus.FindContainer(l, name); c != nil {
			cs = c
			break
		}
	}
	if cs == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod)
	}
	strip := func(id string) string {
		_, after, ok := strings.Cut(id, "://")
		if ok {
			return after
		}
		return id
	}
	last, state := cs.LastTerminationState.Terminated, cs.State
	switch {
	case previous:
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
		}
		return strip(last.ContainerID), nil
	case state.Running != nil:
		return strip(cs.ContainerID), nil
	case state.Terminated != nil && state.Terminated.ContainerID != "":
		return strip(state.Terminated.ContainerID), nil
	case (state.Terminated != nil || last != nil) && (last == nil || last.ContainerID == ""):
		return "", fmt.Errorf("container %q in pod %q is terminated", name, pod)
	case last != nil:
		return strip(last.ContainerID), nil
	case state.Waiting != nil:
		switch state.Waiting.Reason {
		case "ErrImagePull":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", name, pod)
		case "ImagePullBackOff":
			return "", fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", name, pod)
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %v", name, pod, state.Waiting.Reason)
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod)
}

// LogLevel sets how much the process logs, where the server lets it be set.
func (h host) LogLevel(verbosity int) { h.k.cfg.LogLevel(verbosity) }

// Health are the kubelet's checks.
func (h host) Health() http.Handler { return h.k.health }

// SystemLogs are the files below /var/log and, if the settings say so, what is
// asked for by query.
func (h host) SystemLogs() http.Handler {
	const dir = "/var/log"
	paths := http.FileServer(http.Dir(dir))
	if !*h.k.cfg.Settings.EnableSystemLogQuery {
		return paths
	}
	return logquery.New(dir, "journalctl", logquery.OwnUnit(), paths)
}

func (h host) container(t server.Target) (*runtimestate.Container, error) {
	s, ok := h.find(t.Namespace, t.Pod, t.UID)
	if !ok || s.observed == nil {
		return nil, server.NotFound("pod does not exist")
	}
	c := s.observed.Latest(t.Container)
	if c == nil {
		return nil, server.NotFound("container not found (%q)", t.Container)
	}
	return c, nil
}

func (h host) ExecURL(ctx context.Context, t server.Target) (string, error) {
	c, err := h.container(t)
	if err != nil {
		return "", err
	}
	res, err := h.k.runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.Id, Cmd: t.Command, Tty: t.TTY, Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr})
	return res.GetUrl(), err
}

func (h host) AttachURL(ctx context.Context, t server.Target) (string, error) {
	c, err := h.container(t)
	if err != nil {
		return "", err
	}
	s, _ := h.find(t.Namespace, t.Pod, t.UID)
	if spec, _ := podspec.FindContainer(s.pod, t.Container); spec != nil {
		t.TTY = spec.TTY // what it was started with counts
		t.Stderr = t.Stderr && !t.TTY
	}
	res, err := h.k.runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.Id, Tty: t.TTY, Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr})
	return res.GetUrl(), err
}

func (h host) PortForwardURL(ctx context.Context, t server.Target) (string, error) {
	s, ok := h.find(t.Namespace, t.Pod, t.UID)
	if !ok || s.observed == nil {
		return "", server.NotFound("pod does not exist")
	}
	sb, ok := s.observed.ReadySandbox()
	if !ok {
		return "", server.NotFound("pod not found (%q)", t.Pod)
	}
	res, err := h.k.runtime.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: sb.Id, Port: t.Ports})
	return res.GetUrl(), err
}

func (h host) Run(ctx context.Context, t server.Target) ([]byte, error) {
	c, err := h.container(t)
	if err != nil {
		return nil, err
	}
	out, code, err := h.k.execSync(ctx, c.Id, t.Command, 0)
	if err == nil && code != 0 {
		err = fmt.Errorf("command '%s' exited with %d: %s", strings.Join(t.Command, " "), code, out)
	}
	return out, err
}

var _ server.Host = host{}
