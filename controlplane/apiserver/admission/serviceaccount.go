package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"

	"knarr/controlplane/apiserver/endpoints"
	"knarr/controlplane/apiserver/watchcache"
)

// serviceAccount gives every pod an account and its token, and checks that a
// pod uses only secrets its account lists where the account asks for that.
type serviceAccount struct{ cache *watchcache.Cache }

const (
	tokenPath          = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenSeconds       = 60*60 + 7
	mirrorAnnotation   = corev1.MirrorPodAnnotationKey
	mountableSecrets   = "kubernetes.io/enforce-mountable-secrets"
	rootCertsConfigMap = "kube-root-ca.crt"
)

func (*serviceAccount) Name() string { return "ServiceAccount" }

func (s *serviceAccount) Admit(ctx context.Context, a *endpoints.Attributes) error {
	if a.Operation != endpoints.Create || !is(a, "pods", "") {
		return nil
	}
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; mirror {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default"
		pod.Spec.DeprecatedServiceAccount = "default"
	}
	sa, err := s.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return apierrors.NewForbidden(a.Resource.GroupResource(), pod.Name,
			fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err))
	}
	if mounts(sa, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = append([]corev1.LocalObjectReference(nil), sa.ImagePullSecrets...)
	}
	return nil
}

// Validate sees what Admit left and, since they can be added later, ephemeral
// containers (CVE-2023-2727, CVE-2024-3177).
func (s *serviceAccount) Validate(ctx context.Context, a *endpoints.Attributes) error {
	creates := a.Operation == endpoints.Create && is(a, "pods", "")
	adds := a.Operation == endpoints.Update && is(a, "pods", "ephemeralcontainers")
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !creates && !adds {
		return nil
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; mirror {
		if creates && pod.Spec.ServiceAccountName != "" {
			return forbidden(a, fmt.Errorf("a mirror pod may not reference service accounts"))
		}
		return nil
	}
	sa, err := s.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return forbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err))
	}
	if sa.Annotations[mountableSecrets] != "true" {
		return nil
	}
	allowed, pull := map[string]bool{}, map[string]bool{}
	for _, r := range sa.Secrets {
		allowed[r.Name] = true
	}
	for _, r := range sa.ImagePullSecrets {
		pull[r.Name] = true
	}
	if err := onlyMountable(pod, sa.Name, allowed, pull); err != nil {
		return forbidden(a, err)
	}
	return nil
}

func (s *serviceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	accounts := s.cache.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts"))
	if sa, ok := watchcache.Read[*corev1.ServiceAccount](accounts, namespace+"/"+name); ok {
		return sa, nil
	}
	rec, err := accounts.Get(ctx, namespace+"/"+name, "")
	if err != nil {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
	}
	o, err := rec.Object()
	if err != nil {
		return nil, err
	}
	return o.(*corev1.ServiceAccount), nil
}

// mounts says whether pod gets a token: the pod's word counts before the
// account's.
func mounts(sa *corev1.ServiceAccount, pod *corev1.Pod) bool {
	switch {
	case pod.Spec.AutomountServiceAccountToken != nil:
		return *pod.Spec.AutomountServiceAccountToken
	case sa.AutomountServiceAccountToken != nil:
		return *sa.AutomountServiceAccountToken
	}
	return true
}

// mountToken adds the projected volume with token, CA and namespace, and
// mounts it where a container mounts nothing there itself.
func mountToken(pod *corev1.Pod) {
	name := ""
	mount := func(c *corev1.Container) {
		for _, m := range c.VolumeMounts {
			if m.MountPath == tokenPath {
				return
			}
		}
		if name == "" {
			name = "kube-api-access-" + rand.String(5)
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
	}
	for i := range pod.Spec.InitContainers {
		mount(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		mount(&pod.Spec.Containers[i])
	}
	if name == "" {
		return
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(corev1.ProjectedVolumeSourceDefaultMode), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCertsConfigMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		}},
	}})
}

// onlyMountable checks each place where a pod can name a secret.
func onlyMountable(pod *corev1.Pod, account string, allowed, pull map[string]bool) error {
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !allowed[v.Secret.SecretName] {
			return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, account)
		}
		if v.Projected != nil {
			for _, src := range v.Projected.Sources {
				if src.Secret != nil && !allowed[src.Secret.Name] {
					return fmt.Errorf("projected volume with secret %q is not allowed because service account %s does not reference that secret", src.Secret.Name, account)
				}
			}
		}
	}
	check := func(kind, name string, env []corev1.EnvVar, from []corev1.EnvFromSource) error {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !allowed[e.ValueFrom.SecretKeyRef.Name] {
				return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", kind, name, e.Name, e.ValueFrom.SecretKeyRef.Name, account)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil && !allowed[f.SecretRef.Name] {
				return fmt.Errorf("%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret", kind, name, f.SecretRef.Name, account)
			}
		}
		return nil
	}
	for _, c := range pod.Spec.InitContainers {
		if err := check("init container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := check("container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if err := check("ephemeral container", c.Name, c.Env, c.EnvFrom); err != nil {
			return err
		}
	}
	for _, p := range pod.Spec.ImagePullSecrets {
		if !pull[p.Name] {
			return fmt.Errorf("imagePullSecrets[].name=%q is not allowed because service account %s does not reference that imagePullSecret", p.Name, account)
		}
	}
	return nil
}
