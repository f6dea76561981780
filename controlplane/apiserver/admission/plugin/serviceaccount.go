package plugin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/watchcache"
)

// serviceAccount gives every pod an account and its token, and checks that a
// pod uses only secrets its account lists where the account asks for that.
type serviceAccount struct{ cache *watchcache.Cache }

const (
	tokenPath          = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume        = "kube-api-access-"
	tokenSeconds       = 60*60 + 7
	mirrorAnnotation   = corev1.MirrorPodAnnotationKey
	mountableSecrets   = "kubernetes.io/enforce-mountable-secrets"
	rootCertsConfigMap = "kube-root-ca.crt"
)

func (*serviceAccount) Name() string { return "ServiceAccount" }

func (s *serviceAccount) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Operation != admission.Create || !is(a, "pods", "") {
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
		return forbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err))
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
func (s *serviceAccount) Validate(ctx context.Context, a *admission.Attributes) error {
	creates := a.Operation == admission.Create && is(a, "pods", "")
	adds := a.Operation == admission.Update && is(a, "pods", "ephemeralcontainers")
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !creates && !adds {
		return nil
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; mirror && creates {
		if err := plainMirror(pod); err != nil {
			return forbidden(a, err)
		}
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbidden(a, fmt.Errorf("no service account specified for pod %s/%s", a.Namespace, pod.Name))
	}
	sa, err := s.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return forbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err))
	}
	if enforce, _ := strconv.ParseBool(sa.Annotations[mountableSecrets]); !enforce {
		return nil
	}
	if creates {
		err = onlyMountable(pod, sa)
	}
	if err == nil {
		err = ephemeralMountable(pod, sa)
	}
	if err != nil {
		return forbidden(a, err)
	}
	return nil
}

// plainMirror keeps a kubelet from getting at secrets by way of a static pod.
func plainMirror(pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return errors.New("a mirror pod may not reference service accounts")
	}
	for range authz.PodSecrets(pod) {
		return errors.New("a mirror pod may not reference secrets")
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources {
			if src.ServiceAccountToken != nil {
				return errors.New("a mirror pod may not use ServiceAccountToken volume projections")
			}
		}
	}
	return nil
}

const (
	defaultAccount = "default"
	accountTries   = 10
	accountWait    = 100 * time.Millisecond
)

// account finds a service account. The default one of a new namespace is made
// by a controller; it is waited for a moment.
func (s *serviceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	gvr := corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	for try := 1; ; try++ {
		sa, err := lookup[*corev1.ServiceAccount](ctx, s.cache, gvr, namespace+"/"+name, name)
		if !apierrors.IsNotFound(err) {
			return sa, err
		}
		if name != defaultAccount || try == accountTries {
			return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
		}
		select {
		case <-time.After(accountWait):
		case <-ctx.Done():
			return nil, apierrors.NewNotFound(corev1.Resource("serviceaccount"), name)
		}
	}
}

// mounts reports whether pod gets a token: the pod's word counts before the
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
	name, there := "", false
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, tokenVolume) {
			name, there = v.Name, true
			break
		}
	}
	mounted := false
	mount := func(c *corev1.Container) {
		for _, m := range c.VolumeMounts {
			if m.MountPath == tokenPath {
				return
			}
		}
		if name == "" {
			name = tokenVolume + rand.String(5)
		}
		mounted = true
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
	}
	for i := range pod.Spec.InitContainers {
		mount(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		mount(&pod.Spec.Containers[i])
	}
	if there || !mounted {
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

func named(refs []corev1.ObjectReference) map[string]bool {
	m := map[string]bool{}
	for _, r := range refs {
		m[r.Name] = true
	}
	return m
}

// onlyMountable checks each place where a new pod can name a secret.
func onlyMountable(pod *corev1.Pod, sa *corev1.ServiceAccount) error {
	allowed := named(sa.Secrets)
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !allowed[v.Secret.SecretName] {
			return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret", v.Secret.SecretName, sa.Name)
		}
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources { // upstream leaves this way open
			if src.Secret != nil && !allowed[src.Secret.Name] {
				return fmt.Errorf("volume with projected secret %q is not allowed because service account %s does not reference that secret", src.Secret.Name, sa.Name)
			}
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if err := mountable("init container", c.Name, sa.Name, c.Env, c.EnvFrom, allowed); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := mountable("container", c.Name, sa.Name, c.Env, c.EnvFrom, allowed); err != nil {
			return err
		}
	}
	pull := map[string]bool{}
	for _, r := range sa.ImagePullSecrets {
		pull[r.Name] = true
	}
	for i, p := range pod.Spec.ImagePullSecrets {
		if !pull[p.Name] {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, p.Name, sa.Name)
		}
	}
	return nil
}

func ephemeralMountable(pod *corev1.Pod, sa *corev1.ServiceAccount) error {
	allowed := named(sa.Secrets)
	for _, c := range pod.Spec.EphemeralContainers {
		if err := mountable("ephemeral container", c.Name, sa.Name, c.Env, c.EnvFrom, allowed); err != nil {
			return err
		}
	}
	return nil
}

func mountable(kind, name, account string, env []corev1.EnvVar, from []corev1.EnvFromSource, allowed map[string]bool) error {
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
