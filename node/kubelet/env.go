package kubelet

import (
	"fmt"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"knarr/node/kubelet/volume"
)

// objectSource is where configMaps and secrets of pods come from.
type objectSource interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
}

type pair struct{ name, value string }

// environment is what a container's processes find set: services, envFrom,
// then env, each overriding those before, in the spec's order.
func environment(pod *corev1.Pod, c *corev1.Container, services []pair, from objectSource, down volume.Downward) ([]pair, error) {
	vars := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, ok := vars[name]; !ok {
			order = append(order, name)
		}
		vars[name] = value
	}
	for _, src := range c.EnvFrom {
		data, err := sourceData(pod, src, from)
		if err != nil {
			return nil, err
		}
		for _, key := range sortedKeys(data) {
			set(src.Prefix+key, data[key])
		}
	}
	svc := map[string]string{}
	for _, p := range services {
		svc[p.name] = p.value
	}
	// $(NAME) in values sees services and what was set before.
	lookup := func(name string) (string, bool) {
		if v, ok := vars[name]; ok {
			return v, true
		}
		v, ok := svc[name]
		return v, ok
	}
	for _, e := range c.Env {
		value, ok, err := envValue(pod, c, e, lookup, from, down)
		if err != nil {
			return nil, err
		}
		if ok {
			set(e.Name, value)
		}
	}
	out := make([]pair, 0, len(order)+len(services))
	for _, name := range order {
		out = append(out, pair{name, vars[name]})
	}
	for _, p := range services {
		if _, taken := vars[p.name]; !taken {
			out = append(out, p)
		}
	}
	return out, nil
}

func envValue(pod *corev1.Pod, c *corev1.Container, e corev1.EnvVar, lookup func(string) (string, bool), from objectSource, down volume.Downward) (string, bool, error) {
	s := e.ValueFrom
	if e.Value != "" || s == nil {
		return expand(e.Value, lookup), true, nil
	}
	optional := func(o *bool) bool { return o != nil && *o }
	switch {
	case s.FieldRef != nil:
		v, err := down.Field(s.FieldRef.FieldPath)
		return v, true, err
	case s.ResourceFieldRef != nil:
		name := s.ResourceFieldRef.ContainerName
		if name == "" {
			name = c.Name
		}
		v, err := down.Resource(name, s.ResourceFieldRef)
		return v, true, err
	case s.ConfigMapKeyRef != nil:
		r := s.ConfigMapKeyRef
		cm, err := from.ConfigMap(pod.Namespace, r.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && optional(r.Optional) {
				return "", false, nil
			}
			return "", false, err
		}
		v, ok := cm.Data[r.Key]
		if !ok && !optional(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, pod.Namespace, r.Name)
		}
		return v, ok, nil
	case s.SecretKeyRef != nil:
		r := s.SecretKeyRef
		sec, err := from.Secret(pod.Namespace, r.Name)
		if err != nil {
			if apierrors.IsNotFound(err) && optional(r.Optional) {
				return "", false, nil
			}
			return "", false, err
		}
		v, ok := sec.Data[r.Key]
		if !ok && !optional(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, pod.Namespace, r.Name)
		}
		return string(v), ok, nil
	case s.FileKeyRef != nil:
		v, ok, err := down.FileKey(s.FileKeyRef)
		if err != nil || ok || optional(s.FileKeyRef.Optional) {
			return v, ok, err
		}
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", s.FileKeyRef.Key, s.FileKeyRef.Path)
	}
	return "", true, nil
}

func sourceData(pod *corev1.Pod, src corev1.EnvFromSource, from objectSource) (map[string]string, error) {
	data := map[string]string{}
	switch {
	case src.ConfigMapRef != nil:
		cm, err := from.ConfigMap(pod.Namespace, src.ConfigMapRef.Name)
		if err != nil {
			if o := src.ConfigMapRef.Optional; apierrors.IsNotFound(err) && o != nil && *o {
				return data, nil
			}
			return nil, err
		}
		return cm.Data, nil
	case src.SecretRef != nil:
		s, err := from.Secret(pod.Namespace, src.SecretRef.Name)
		if err != nil {
			if o := src.SecretRef.Optional; apierrors.IsNotFound(err) && o != nil && *o {
				return data, nil
			}
			return nil, err
		}
		for k, v := range s.Data {
			data[k] = string(v)
		}
	}
	return data, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// expand replaces $(NAME); $$ is a dollar, unknown names stay as written.
func expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// serviceEnv is the variables that name services: those of the pod's namespace
// if links is set, and always the API server's.
func serviceEnv(all []*corev1.Service, namespace string, links bool) (out []pair) {
	pick := map[string]*corev1.Service{}
	for _, s := range all {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		master := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		switch {
		case s.Namespace == namespace && (links || master):
			pick[s.Name] = s
		case master:
			if _, ok := pick[s.Name]; !ok {
				pick[s.Name] = s
			}
		}
	}
	names := make([]string, 0, len(pick))
	for n := range pick {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		s := pick[n]
		if len(s.Spec.Ports) == 0 {
			continue
		}
		prefix := strings.ToUpper(strings.ReplaceAll(n, "-", "_"))
		ip := s.Spec.ClusterIP
		out = append(out, pair{prefix + "_SERVICE_HOST", ip}, pair{prefix + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))})
		for _, p := range s.Spec.Ports {
			if p.Name != "" {
				out = append(out, pair{prefix + "_SERVICE_PORT_" + strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(int(p.Port))})
			}
		}
		for i, p := range s.Spec.Ports {
			proto := p.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			port, lower := strconv.Itoa(int(p.Port)), strings.ToLower(string(proto))
			url := lower + "://" + net.JoinHostPort(ip, port)
			if i == 0 {
				out = append(out, pair{prefix + "_PORT", url})
			}
			base := prefix + "_PORT_" + port + "_" + strings.ToUpper(string(proto))
			out = append(out, pair{base, url}, pair{base + "_PROTO", lower}, pair{base + "_PORT", port}, pair{base + "_ADDR", ip})
		}
	}
	return out
}

func (k *Kubelet) serviceEnv(pod *corev1.Pod) []pair {
	all, err := k.services.List(labels.Everything())
	if err != nil {
		return nil
	}
	return serviceEnv(all, pod.Namespace, pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks)
}
