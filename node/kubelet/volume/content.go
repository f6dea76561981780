package volume

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A File is one file of a volume made of API objects.
type File struct {
	Data []byte
	Mode int32
	// User owns the file if set.
	User *int64
}

// maxContent is how much the volumes of one pod may hold that are made of API
// objects. They lie in memory, and each item of a list may be another copy of
// the same secret.
const maxContent = 64 << 20

var errContent = fmt.Errorf("the pod's volumes of configMaps, secrets and its own fields hold more than %d bytes", maxContent)

func size(files map[string]File) (n int) {
	for _, f := range files {
		n += len(f.Data)
	}
	return n
}

func set(o *bool) bool { return o != nil && *o }

func modeOr(m *int32, d int32) int32 {
	if m != nil {
		return *m
	}
	return d
}

func (m *Manager) configMap(pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (map[string]File, error) {
	cm, err := m.ConfigMap(pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && set(optional):
		cm = &corev1.ConfigMap{}
	case err != nil:
		return nil, err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return choose(data, items, modeOr(mode, 0o644), set(optional))
}

func (m *Manager) secret(pod *corev1.Pod, name string, items []corev1.KeyToPath, mode *int32, optional *bool) (map[string]File, error) {
	s, err := m.Secret(pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && set(optional):
		s = &corev1.Secret{}
	case err != nil:
		return nil, err
	}
	return choose(s.Data, items, modeOr(mode, 0o644), set(optional))
}

// choose picks the items out of data, or everything without items.
func choose(data map[string][]byte, items []corev1.KeyToPath, mode int32, optional bool) (map[string]File, error) {
	files := make(map[string]File, len(data))
	if len(items) == 0 {
		for k, v := range data {
			files[k] = File{Data: v, Mode: mode}
		}
		return files, nil
	}
	for _, i := range items {
		v, ok := data[i.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("references non-existent config key: %s", i.Key)
		}
		files[i.Path] = File{Data: v, Mode: modeOr(i.Mode, mode)}
	}
	return files, nil
}

func downward(items []corev1.DownwardAPIVolumeFile, mode *int32, down Downward) (map[string]File, error) {
	files := make(map[string]File, len(items))
	total := 0
	for _, i := range items {
		f := File{Mode: modeOr(i.Mode, modeOr(mode, 0o644))}
		var s string
		var err error
		switch {
		case i.FieldRef != nil:
			s, err = down.Field(i.FieldRef.FieldPath)
		case i.ResourceFieldRef != nil:
			s, err = down.Resource(i.ResourceFieldRef.ContainerName, i.ResourceFieldRef)
		}
		if err != nil {
			return nil, err
		}
		if total += len(s); total > maxContent {
			return nil, errContent
		}
		f.Data = []byte(s)
		files[filepath.Clean(i.Path)] = f
	}
	return files, nil
}

// secretFile is a file of what stands for the pod: its user's alone, if all containers
// have the same one, or the pod's files belong to a group.
func secretFile(pod *corev1.Pod, data []byte, mode *int32) File {
	f := File{Data: data, Mode: modeOr(mode, 0o644), User: commonUser(pod)}
	if f.User != nil || fsGroup(pod) != nil {
		f.Mode = 0o600
	}
	return f
}

func (m *Manager) projected(ctx context.Context, pod *corev1.Pod, volume string, p *corev1.ProjectedVolumeSource, down Downward) (files map[string]File, again time.Time, err error) {
	files = map[string]File{}
	total := 0
	sooner := func(t time.Time) {
		if !t.IsZero() && (again.IsZero() || t.Before(again)) {
			again = t
		}
	}
	for i, s := range p.Sources {
		var part map[string]File
		switch {
		case s.ConfigMap != nil:
			part, err = m.configMap(pod, s.ConfigMap.Name, s.ConfigMap.Items, p.DefaultMode, s.ConfigMap.Optional)
		case s.Secret != nil:
			part, err = m.secret(pod, s.Secret.Name, s.Secret.Items, p.DefaultMode, s.Secret.Optional)
		case s.DownwardAPI != nil:
			part, err = downward(s.DownwardAPI.Items, p.DefaultMode, down)
		case s.ServiceAccountToken != nil:
			var token string
			var next time.Time
			token, next, err = m.token(ctx, pod, s.ServiceAccountToken)
			sooner(next)
			part = map[string]File{s.ServiceAccountToken.Path: secretFile(pod, []byte(token), p.DefaultMode)}
		case s.PodCertificate != nil:
			if m.PodCertificate == nil {
				err = fmt.Errorf("certificates of pods cannot be had")
				break
			}
			var key, chain []byte
			var next time.Time
			key, chain, next, err = m.PodCertificate(ctx, pod, volume, i, s.PodCertificate)
			sooner(next)
			part = map[string]File{}
			for path, data := range map[string][]byte{
				s.PodCertificate.CredentialBundlePath: slices.Concat(key, chain),
				s.PodCertificate.KeyPath:              key,
				s.PodCertificate.CertificateChainPath: chain,
			} {
				if path != "" {
					part[path] = secretFile(pod, data, p.DefaultMode)
				}
			}
		case s.ClusterTrustBundle != nil:
			if m.TrustBundle == nil {
				err = fmt.Errorf("cluster trust bundles cannot be read")
				break
			}
			var pem string
			pem, err = m.TrustBundle(ctx, s.ClusterTrustBundle)
			part = map[string]File{s.ClusterTrustBundle.Path: {Data: []byte(pem), Mode: modeOr(p.DefaultMode, 0o644)}}
		}
		if err != nil {
			return nil, again, err
		}
		if total += size(part); total > maxContent {
			return nil, again, errContent
		}
		for k, f := range part {
			files[k] = f
		}
	}
	return files, again, nil
}

// commonUser is the user all containers run as, or nil if they differ.
func commonUser(pod *corev1.Pod) *int64 {
	var def *int64
	if pod.Spec.SecurityContext != nil {
		def = pod.Spec.SecurityContext.RunAsUser
	}
	var user *int64
	first := true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			u := def
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				u = sc.RunAsUser
			}
			if u == nil || (!first && *user != *u) {
				return nil
			}
			user, first = u, false
		}
	}
	return user
}

type cachedToken struct {
	token   string
	refresh time.Time
}

// token answers from memory until the token wants to be renewed.
func (m *Manager) token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
	exp := int64(0)
	if p.ExpirationSeconds != nil {
		exp = *p.ExpirationSeconds
	}
	key := fmt.Sprintf("%s/%s/%d", pod.UID, p.Audience, exp)
	m.mu.Lock()
	c, ok := m.tokens[key]
	m.mu.Unlock()
	if ok && time.Now().Before(c.refresh) {
		return c.token, c.refresh, nil
	}
	token, refresh, err := m.Token(ctx, pod, p)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	m.mu.Lock()
	m.tokens[key] = cachedToken{token, refresh}
	m.mu.Unlock()
	return token, refresh, nil
}

func (m *Manager) forgetTokens(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.tokens {
		if strings.HasPrefix(k, uid+"/") {
			delete(m.tokens, k)
		}
	}
}
