package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"knarr/internal/run"
)

// socket is what plugins register at.
const socket = "kubelet.sock"

// Run serves the registration socket until ctx ends. The sockets of earlier plugins are
// removed first, which tells these to register again.
func (m *Manager) Run(ctx context.Context) error {
	if err := os.MkdirAll(m.dir, 0o750); err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	if err := m.removeSockets(); err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	ln, err := net.Listen("unix", filepath.Join(m.dir, socket))
	if err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(64), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
			err = run.Catch("kubelet: registration of a device plugin", func() (err error) {
				answer, err = next(ctx, req)
				return err
			})
			return answer, err
		}))
	pluginapi.RegisterRegistrationServer(srv, registration{m: m})
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	defer m.close()
	if err := srv.Serve(ln); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	return nil
}

// removeSockets removes the sockets that an earlier run has left.
func (m *Manager) removeSockets() error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			errs = append(errs, os.Remove(filepath.Join(m.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) close() {
	m.mu.Lock()
	for _, p := range m.plugins {
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}
	m.mu.Unlock()
	m.loops.Wait()
}

// registration is the service at the socket.
type registration struct {
	m *Manager
	pluginapi.UnimplementedRegistrationServer
}

// Register takes a plugin.
func (r registration) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := r.m.register(ctx, req); err != nil {
		slog.Warn("device plugin is not taken", "resource", req.ResourceName, "err", err)
		return nil, err
	}
	// Only then: a name is a label of a metric, and those that are taken are few.
	if r.m.cfg.Registered != nil {
		r.m.cfg.Registered(req.ResourceName)
	}
	return &pluginapi.Empty{}, nil
}

func (m *Manager) register(ctx context.Context, req *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], req.Version) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", req.Version, pluginapi.SupportedVersions)
	}
	if !Extended(req.ResourceName) {
		return fmt.Errorf("the ResourceName %q is invalid", req.ResourceName)
	}
	if filepath.Base(req.Endpoint) != req.Endpoint || req.Endpoint == ".." || req.Endpoint == "." {
		return fmt.Errorf("the endpoint %q is not the name of a socket in %s", req.Endpoint, m.dir)
	}
	_, err := m.connect(ctx, req.ResourceName, filepath.Join(m.dir, req.Endpoint))
	return err
}

// Adopt takes a plugin that the directory of all kinds of plugins has, in place of one that
// registers itself: its resource, the path of its socket, and the versions it speaks. drop
// forgets it when it is gone from that directory, and says whether it was still the one of
// its resource: another that has taken its place stays.
func (m *Manager) Adopt(ctx context.Context, resource, path string, versions []string) (drop func() (was bool), err error) {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return nil, fmt.Errorf("manager version, %s, is not among plugin supported versions %v", pluginapi.Version, versions)
	}
	if !Extended(resource) {
		return nil, fmt.Errorf("invalid name of device plugin socket: the ResourceName %q is invalid", resource)
	}
	p, err := m.connect(ctx, resource, path)
	if err != nil {
		return nil, err
	}
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_ = p.conn.Close() // whoever reads its devices sees it go
		return m.plugins[resource] == p
	}, nil
}

// connect takes the plugin of a resource behind a socket.
func (m *Manager) connect(ctx context.Context, resource, path string) (*plugin, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	client := pluginapi.NewDevicePluginClient(conn)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	options, err := client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil || m.ctx.Err() != nil {
		_ = conn.Close()
		return nil, errors.New("device plugins are not served")
	}
	old := m.plugins[resource]
	if old == nil && len(m.plugins) >= maxPlugins {
		_ = conn.Close()
		return nil, fmt.Errorf("%d resources are registered already", maxPlugins)
	}
	p := newPlugin(resource)
	p.conn, p.client, p.options = conn, client, options
	if old != nil {
		p.turn, p.devices = old.turn, old.devices // until it has told its own
		if old.conn != nil {
			_ = old.conn.Close()
		}
	}
	m.plugins[resource] = p
	slog.Info("device plugin registered", "resource", resource)
	m.loops.Go("kubelet: devices of "+resource, func() { m.follow(p) })
	return p, nil
}

// Extended says whether a resource is one that plugins may offer.
func Extended(name string) bool {
	if !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0 && len(validation.IsQualifiedName(name)) == 0
}

// follow reads which devices a plugin has until it is gone.
func (m *Manager) follow(p *plugin) {
	stream, err := p.client.ListAndWatch(m.ctx, &pluginapi.Empty{})
	for err == nil {
		var res *pluginapi.ListAndWatchResponse
		if res, err = stream.Recv(); err == nil {
			m.devicesAre(p, res.Devices)
		}
	}
	_ = p.conn.Close()
	m.mu.Lock()
	is := m.plugins[p.resource] == p
	if is {
		p.stopped = time.Now()
	}
	affected := m.holders(p.resource, nil)
	m.mu.Unlock()
	if !is || m.ctx.Err() != nil {
		return // another has taken its place, or all ends
	}
	slog.Info("device plugin has gone", "resource", p.resource, "err", err)
	m.tell(affected)
	timer := time.NewTimer(gracePeriod)
	defer timer.Stop()
	select {
	case <-timer.C:
		m.cfg.Changed() // the resource goes from the Node
	case <-m.ctx.Done():
	}
}

// devicesAre takes what a plugin says it has.
func (m *Manager) devicesAre(p *plugin, list []*pluginapi.Device) {
	m.mu.Lock()
	if m.plugins[p.resource] != p {
		m.mu.Unlock()
		return
	}
	next, changed := map[string]*pluginapi.Device{}, set{}
	for _, d := range list {
		next[d.ID] = d
		if old := p.devices[d.ID]; old == nil || old.Health != d.Health {
			changed[d.ID] = true
		}
	}
	p.devices = next
	affected := m.holders(p.resource, changed)
	err := m.save()
	m.mu.Unlock()
	if err != nil {
		slog.Warn("keep which container has which device", "err", err)
	}
	m.tell(affected)
}

// holders are the pods that have one of the devices; of any if there are none. The lock
// is held.
func (m *Manager) holders(resource string, of set) (pods []types.UID) {
	for uid, containers := range m.pods {
		for _, resources := range containers {
			if a := resources[resource]; a != nil && (of == nil || slices.ContainsFunc(slices.Collect(maps.Keys(a.devices)), func(id string) bool { return of[id] })) {
				pods = append(pods, uid)
				break
			}
		}
	}
	return pods
}

func (m *Manager) tell(pods []types.UID) {
	m.cfg.Changed()
	for _, uid := range pods {
		m.cfg.Health(uid)
	}
}
