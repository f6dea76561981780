package legacytokencleaner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlan(t *testing.T) {
	const unused = 365 * 24 * time.Hour
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	old := metav1.NewTime(now.Add(-2 * unused))
	for name, c := range map[string]struct {
		typ           corev1.SecretType
		made          metav1.Time
		used, invalid string
		want          action
	}{
		"of another type":         {corev1.SecretTypeOpaque, old, "", "", keep},
		"young":                   {corev1.SecretTypeServiceAccountToken, metav1.NewTime(now.Add(-unused)), "", "", keep},
		"never used":              {corev1.SecretTypeServiceAccountToken, old, "", "", invalidate},
		"used lately":             {corev1.SecretTypeServiceAccountToken, old, "2025-06-15", "", keep},
		"used long ago":           {corev1.SecretTypeServiceAccountToken, old, "2025-06-14", "", invalidate},
		"used who knows when":     {corev1.SecretTypeServiceAccountToken, old, "yesterday", "", keep},
		"invalid who knows when":  {corev1.SecretTypeServiceAccountToken, old, "", "yesterday", invalidate},
		"invalid lately":          {corev1.SecretTypeServiceAccountToken, old, "", "2025-06-15", keep},
		"invalid long ago":        {corev1.SecretTypeServiceAccountToken, old, "", "2025-06-14", remove},
		"invalid, and used since": {corev1.SecretTypeServiceAccountToken, old, "2026-01-01", "2025-06-14", keep},
	} {
		s := &corev1.Secret{Type: c.typ, ObjectMeta: metav1.ObjectMeta{CreationTimestamp: c.made, Labels: map[string]string{}}}
		if c.used != "" {
			s.Labels[lastUsedLabel] = c.used
		}
		if c.invalid != "" {
			s.Labels[invalidSinceLabel] = c.invalid
		}
		if got := plan(s, now, unused); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if got := plan(s, now, 4*unused); got != keep {
			t.Errorf("%s, and four years are allowed: %v", name, got)
		}
	}
}

func TestReads(t *testing.T) {
	for name, spec := range map[string]corev1.PodSpec{
		"pull":      {ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s"}}},
		"volume":    {Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}},
		"env":       {InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}}}}},
		"envFrom":   {Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}}}},
		"projected": {Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}}}}}},
	} {
		p := &corev1.Pod{Spec: spec}
		if !reads(p, "s") || reads(p, "other") {
			t.Error(name)
		}
	}
}
