package connect

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"knarr/controlplane/apiserver/request"
)

// podLog streams a container's log.
func (c *connection) podLog() error {
	opts := &corev1.PodLogOptions{}
	if c.info.Verb != "get" {
		return ErrMethod
	}
	if err := c.decodeQuery(opts); err != nil {
		return err
	}
	if errs := checkLogOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.info.Name, errs)
	}
	pod, err := c.pod(c.info.Name)
	if err != nil {
		return err
	}
	container, err := chooseContainer(pod, opts.Container)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" {
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	to, err := c.kubelet(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	q := url.Values{}
	for key, on := range map[string]bool{"follow": opts.Follow, "previous": opts.Previous, "timestamps": opts.Timestamps} {
		if on {
			q.Set(key, "true")
		}
	}
	for key, n := range map[string]*int64{"sinceSeconds": opts.SinceSeconds, "tailLines": opts.TailLines, "limitBytes": opts.LimitBytes} {
		if n != nil {
			q.Set(key, strconv.FormatInt(*n, 10))
		}
	}
	if opts.SinceTime != nil {
		q.Set("sinceTime", opts.SinceTime.Format(time.RFC3339))
	}
	if opts.Stream != nil {
		q.Set("stream", *opts.Stream)
	}
	to.target.Path = "/" + strings.Join([]string{"containerLogs", pod.Namespace, pod.Name, container}, "/")
	to.target.RawQuery = q.Encode()
	to.logOf = pod.Name
	to.failure = func(err error) error { return apierrors.NewInternalError(err) }
	if request.IsWebSocket(c.r) {
		return to.frames(c)
	}
	to.serve(c)
	return nil
}

func checkLogOptions(opts *corev1.PodLogOptions) (errs field.ErrorList) {
	if n := opts.TailLines; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *n, "must be greater than or equal to 0").WithOrigin("minimum"))
	}
	if n := opts.LimitBytes; n != nil && *n < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *n, "must be greater than 0").WithOrigin("minimum"))
	}
	switch {
	case opts.SinceSeconds != nil && opts.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case opts.SinceSeconds != nil && *opts.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *opts.SinceSeconds, "must be greater than 0").WithOrigin("minimum"))
	}
	if s := opts.Stream; s != nil {
		known := []string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}
		if !slices.Contains(known, *s) {
			errs = append(errs, field.NotSupported(field.NewPath("stream"), *s, known))
		} else if *s != corev1.LogStreamAll && opts.TailLines != nil {
			errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	}
	return errs
}
