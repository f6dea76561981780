// Package legacytokencleaner is the legacy-serviceaccount-token-cleaner-controller.
// It reads the Secrets that hold tokens, ServiceAccounts, Pods, and the ConfigMap
// that says since when uses of such tokens are noted. Tokens that were made for
// accounts by themselves and that nobody has used for a year it first labels as
// invalid, and deletes a year later.
package legacytokencleaner

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Name is the controller's.
const Name = "legacy-serviceaccount-token-cleaner-controller"

const (
	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
	dateForm          = "2006-01-02"
	tracking          = "kube-apiserver-legacy-service-account-token-tracking"
)

// every is upstream's.
const every = 24 * time.Hour

// A Controller looks once a day.
type Controller struct {
	client   kubernetes.Interface
	accounts corelisters.ServiceAccountLister
	secrets  corelisters.SecretLister
	pods     corelisters.PodLister
	synced   []cache.DoneChecker
	unused   time.Duration
}

// New returns the controller; secrets are those that hold tokens. One that was not used
// for unused goes.
func New(f informers.SharedInformerFactory, client kubernetes.Interface, secrets cache.SharedIndexInformer, unused time.Duration) *Controller {
	accounts, pods := f.Core().V1().ServiceAccounts(), f.Core().V1().Pods()
	return &Controller{client, accounts.Lister(), corelisters.NewSecretLister(secrets.GetIndexer()), pods.Lister(),
		[]cache.DoneChecker{secrets.HasSyncedChecker(), accounts.Informer().HasSyncedChecker(), pods.Informer().HasSyncedChecker()}, unused}
}

// Run looks at once, and then every day, until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, Name, c.synced...) {
		return nil
	}
	day := time.NewTicker(every)
	defer day.Stop()
	for {
		if err := c.clean(ctx, time.Now().UTC()); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "clean up tokens in secrets", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-day.C:
		}
	}
}

func (c *Controller) clean(ctx context.Context, now time.Time) error {
	since, err := c.since(ctx)
	if err != nil || now.Before(since.Add(c.unused)) {
		return err
	}
	all, err := c.secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, s := range all {
		do := plan(s, now, c.unused)
		if do == keep || !c.auto(s) || c.mounted(s) {
			continue
		}
		if err := c.act(ctx, s, do, now); err != nil {
			slog.ErrorContext(ctx, "clean up a token", "secret", s.Namespace+"/"+s.Name, "err", err)
		}
	}
	return nil
}

// since is from when on uses have been noted all day.
func (c *Controller) since(ctx context.Context) (time.Time, error) {
	m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	day, err := time.Parse(dateForm, m.Data["since"])
	if err != nil {
		return time.Time{}, fmt.Errorf("error parsing trackedSince time: %w", err)
	}
	return day.AddDate(0, 0, 1), nil
}

type action int

const (
	keep action = iota
	invalidate
	remove
)

// plan is what a Secret's age and labels ask for, when it may be unused for as long.
func plan(s *corev1.Secret, now time.Time, unused time.Duration) action {
	before := now.Add(-unused)
	day := before.Format(dateForm)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(before) {
		return keep
	}
	if used, ok := s.Labels[lastUsedLabel]; ok {
		if _, err := time.Parse(dateForm, used); err != nil || used >= day {
			return keep
		}
	}
	invalid := s.Labels[invalidSinceLabel]
	if _, err := time.Parse(dateForm, invalid); err != nil {
		return invalidate
	}
	if invalid >= day {
		return keep
	}
	return remove
}

// auto says that the token was made for its account by itself.
func (c *Controller) auto(s *corev1.Secret) bool {
	sa, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; err != nil || uid != "" && uid != string(sa.UID) {
		return false
	}
	return slices.ContainsFunc(sa.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == s.Name })
}

// mounted says that a pod reads the Secret.
func (c *Controller) mounted(s *corev1.Secret) bool {
	pods, err := c.pods.Pods(s.Namespace).List(labels.Everything())
	return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return reads(p, s.Name) })
}

func (c *Controller) act(ctx context.Context, s *corev1.Secret, do action, now time.Time) error {
	api := c.client.CoreV1().Secrets(s.Namespace)
	if do == invalidate {
		slog.InfoContext(ctx, "Mark the auto-generated service account token as invalid", "secret", s.Namespace+"/"+s.Name)
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": s.UID, "labels": map[string]string{invalidSinceLabel: now.Format(dateForm)}}})
		if err != nil {
			return err
		}
		_, err = api.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	slog.InfoContext(ctx, "Delete auto-generated service account token", "secret", s.Namespace+"/"+s.Name)
	err := api.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &s.ResourceVersion}})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
