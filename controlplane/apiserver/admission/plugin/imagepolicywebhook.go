package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/apiserver/admission"
)

// imagePolicyWebhook asks a server whether a pod's images may run.
type imagePolicyWebhook struct {
	*imagePolicy
	answers *cache.LRUExpireCache
}

// An imagePolicy is how that server is asked.
type imagePolicy struct {
	client            rest.Interface
	allowTTL, denyTTL time.Duration
	backoff           wait.Backoff
	defaultAllow      bool
}

const (
	imagePolicyAudit = "imagepolicywebhook.image-policy.k8s.io/"
	answersKept      = 1024
)

func newImagePolicyWebhook(p *imagePolicy) *imagePolicyWebhook {
	return &imagePolicyWebhook{p, cache.NewLRUExpireCache(answersKept)}
}

func (*imagePolicyWebhook) Name() string { return "ImagePolicyWebhook" }

func (p *imagePolicyWebhook) Validate(ctx context.Context, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || a.Operation != admission.Create && a.Operation != admission.Update || !is(a, "pods", "") && !is(a, "pods", "ephemeralcontainers") {
		return nil
	}
	if p.imagePolicy == nil {
		return forbidden(a, errors.New("no config specified"))
	}
	if err := p.review(ctx, a, reviewOf(a, pod)); err != nil {
		return forbidden(a, err)
	}
	return nil
}

// reviewOf is the question about a pod.
func reviewOf(a *admission.Attributes, pod *corev1.Pod) *imagepolicyv1alpha1.ImageReview {
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{Annotations: map[string]string{}, Namespace: a.Namespace}}
	ask := func(image string) {
		review.Spec.Containers = append(review.Spec.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	if a.Subresource == "" {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				ask(list[i].Image)
			}
		}
	} else {
		for i := range pod.Spec.EphemeralContainers {
			ask(pod.Spec.EphemeralContainers[i].Image)
		}
	}
	for key, value := range pod.Annotations {
		if strings.Contains(key, ".image-policy.k8s.io/") {
			review.Spec.Annotations[key] = value
		}
	}
	return review
}

func (p *imagePolicyWebhook) review(ctx context.Context, a *admission.Attributes, review *imagepolicyv1alpha1.ImageReview) error {
	question, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	if known, ok := p.answers.Get(string(question)); ok {
		review.Status = known.(imagepolicyv1alpha1.ImageReviewStatus)
	} else {
		if err := p.ask(ctx, review); err != nil {
			if p.defaultAllow {
				a.Annotate(ctx, imagePolicyAudit+"failed-open", "true")
				return nil
			}
			return err
		}
		ttl := p.denyTTL
		if review.Status.Allowed {
			ttl = p.allowTTL
		}
		p.answers.Add(string(question), review.Status, ttl)
	}
	for key, value := range review.Status.AuditAnnotations {
		a.Annotate(ctx, imagePolicyAudit+key, value)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return fmt.Errorf("image policy webhook backend denied one or more images: %s", review.Status.Reason)
	}
	return errors.New("one or more images rejected by webhook backend")
}

// ask posts the review, again if it may help, and fills in the answer.
func (p *imagePolicyWebhook) ask(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, p.backoff, func(ctx context.Context) (bool, error) {
		result := p.client.Post().Body(review).Do(ctx)
		if last = result.Error(); last != nil {
			if transient(last) {
				return false, nil
			}
			return false, last
		}
		var code int
		if result.StatusCode(&code); code < 200 || code >= 300 {
			last = fmt.Errorf("Error contacting webhook: %d", code)
			return false, last
		}
		last = result.Into(review)
		return last == nil, last
	})
	if last != nil {
		return last
	}
	return err
}

func transient(err error) bool {
	_, later := apierrors.SuggestsClientDelay(err)
	return later || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

func readImagePolicy(s *Settings, data []byte) error {
	if len(data) == 0 {
		return errors.New("no config specified; give it imagePolicy: with a kubeConfigFile in --admission-control-config-file")
	}
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	var config struct {
		ImagePolicy struct {
			KubeConfigFile string `json:"kubeConfigFile"`
			AllowTTL       int64  `json:"allowTTL"`
			DenyTTL        int64  `json:"denyTTL"`
			RetryBackoff   int64  `json:"retryBackoff"`
			DefaultAllow   bool   `json:"defaultAllow"`
		} `json:"imagePolicy"`
	}
	if err := decodeStrict(data, &config); err != nil {
		return err
	}
	c, at := config.ImagePolicy, field.NewPath("imagePolicy")
	p := &imagePolicy{defaultAllow: c.DefaultAllow}
	var initial time.Duration
	for _, d := range []struct {
		into         *time.Duration
		name         string
		value        int64
		unit         time.Duration
		least, most  time.Duration
		defaultValue time.Duration
	}{
		{&initial, "retryBackoff", c.RetryBackoff, time.Millisecond, 1, 5 * time.Minute, 500 * time.Millisecond},
		{&p.allowTTL, "allowTTL", c.AllowTTL, time.Second, time.Second, 30 * time.Minute, 5 * time.Minute},
		{&p.denyTTL, "denyTTL", c.DenyTTL, time.Second, time.Second, 30 * time.Minute, 30 * time.Second},
	} {
		if *d.into, err = duration(d.value, d.unit, d.least, d.most, d.defaultValue); err != nil {
			return field.Invalid(at.Child(d.name), d.value, err.Error())
		}
	}
	p.backoff = wait.Backoff{Duration: initial, Factor: 1.5, Jitter: 0.2, Steps: 5}
	if c.KubeConfigFile == "" {
		return field.Required(at.Child("kubeConfigFile"), "name the kubeconfig that says where the server is")
	}
	if p.client, err = imagePolicyClient(c.KubeConfigFile); err != nil {
		return field.Invalid(at.Child("kubeConfigFile"), c.KubeConfigFile, err.Error())
	}
	s.imagePolicy = p
	return nil
}

// duration is value in its unit; 0 stands for the default and -1 for none.
func duration(value int64, unit, least, most, defaultValue time.Duration) (time.Duration, error) {
	switch value {
	case -1:
		return 0, nil
	case 0:
		return defaultValue, nil
	}
	d := time.Duration(value) * unit
	if d < least || d > most || d/unit != time.Duration(value) {
		return d, fmt.Errorf("valid value is between %v and %v, got %v", least, most, d)
	}
	return d, nil
}

// imagePolicyClient reaches the server that a kubeconfig names.
func imagePolicyClient(file string) (rest.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	reviews := runtime.NewScheme()
	if err := imagepolicyv1alpha1.AddToScheme(reviews); err != nil {
		return nil, err
	}
	config.QPS = -1
	config.ContentConfig = rest.ContentConfig{
		ContentType: runtime.ContentTypeJSON,
		NegotiatedSerializer: serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{
			Serializer: serializer.NewCodecFactory(reviews).LegacyCodec(imagepolicyv1alpha1.SchemeGroupVersion),
		}),
	}
	return rest.UnversionedRESTClientFor(config)
}
