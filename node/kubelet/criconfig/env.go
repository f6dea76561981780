package criconfig

import (
	"fmt"
	"sort"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"knarr/node/kubelet/expansion"
	"knarr/node/kubelet/volume"
)

// Objects is where configMaps and secrets of pods come from.
type Objects interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
}

type variable struct{ name, value string }

// environment is what a container's processes find set: services, envFrom,
// then env, each overriding those before, in the spec's order. All of it is
// taken off the budget.
func environment(pod *corev1.Pod, c *corev1.Container, services []variable, from Objects, down volume.Downward, left *expansion.Budget) ([]variable, error) {
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
			if err := left.Take(len(src.Prefix) + len(key) + len(data[key])); err != nil {
				return nil, err
			}
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
		value, ok, err := envValue(pod, c, e, lookup, from, down, left)
		if err != nil {
			return nil, err
		}
		if err := left.Take(len(e.Name)); err != nil {
			return nil, err
		}
		if ok {
			set(e.Name, value)
		}
	}
	out := make([]variable, 0, len(order)+len(services))
	for _, name := range order {
		out = append(out, variable{name, vars[name]})
	}
	for _, p := range services {
		if _, taken := vars[p.name]; !taken {
			out = append(out, p)
		}
	}
	return out, nil
}

func envValue(pod *corev1.Pod, c *corev1.Container, e corev1.EnvVar, lookup func(string) (string, bool), from Objects, down volume.Downward, left *expansion.Budget) (string, bool, error) {
	s := e.ValueFrom
	if e.Value != "" || s == nil {
		v, err := expansion.Expand(e.Value, lookup, left)
		return v, true, err
	}
	v, ok, err := envSource(pod, c, s, from, down)
	if err == nil {
		err = left.Take(len(v))
	}
	return v, ok, err
}

func envSource(pod *corev1.Pod, c *corev1.Container, s *corev1.EnvVarSource, from Objects, down volume.Downward) (string, bool, error) {
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
		return down.FileKey(s.FileKeyRef)
	}
	return "", true, nil
}

func sourceData(pod *corev1.Pod, src corev1.EnvFromSource, from Objects) (map[string]string, error) {
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
