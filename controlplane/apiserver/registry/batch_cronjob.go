package registry

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var cronJobs = &Kind[*batchv1.CronJob]{
	GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("CronJob"),
	Plural:           "cronjobs",
	Short:            []string{"cj"},
	Categories:       []string{"all"},

	Default: func(c *batchv1.CronJob) {
		fill(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
		fillPtr(&c.Spec.Suspend, false)
		fillPtr(&c.Spec.SuccessfulJobsHistoryLimit, 3)
		fillPtr(&c.Spec.FailedJobsHistoryLimit, 1)
		defaultJobSpec(&c.Spec.JobTemplate.Spec)
	},
	Prepare: spec(
		func(c *batchv1.CronJob) { c.Status = batchv1.CronJobStatus{} },
		func(c, old *batchv1.CronJob) { c.Status = old.Status },
		func(c, old *batchv1.CronJob) bool { return !same(c.Spec, old.Spec) }),
	Pods:     func(o *batchv1.CronJob) *corev1.PodSpec { return &o.Spec.JobTemplate.Spec.Template.Spec },
	Validate: validateCronJob,
	Warn: func(_ context.Context, c, old *batchv1.CronJob) []string {
		warnings := warnJobSpec(&c.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))
		if old == nil {
			return append(warnPodName(c.Name), warnings...)
		}
		return warnings
	},
	Columns: append([]Column[*batchv1.CronJob]{
		nameColumn[*batchv1.CronJob](),
		column("Schedule", "string", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"], 0,
			func(c *batchv1.CronJob) any { return c.Spec.Schedule }),
		column("Timezone", "string", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"], 0,
			func(c *batchv1.CronJob) any { return deref(c.Spec.TimeZone, "<none>") }),
		column("Suspend", "boolean", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"], 0, func(c *batchv1.CronJob) any {
			switch {
			case c.Spec.Suspend == nil:
				return "<unset>"
			case *c.Spec.Suspend:
				return "True"
			}
			return "False"
		}),
		column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"], 0,
			func(c *batchv1.CronJob) any { return int64(len(c.Status.Active)) }),
		column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"], 0, func(c *batchv1.CronJob) any {
			if c.Status.LastScheduleTime == nil {
				return "<none>"
			}
			return age(*c.Status.LastScheduleTime)
		}),
		ageColumn[*batchv1.CronJob](),
	}, append(templateColumns(func(c *batchv1.CronJob) *corev1.PodSpec { return &c.Spec.JobTemplate.Spec.Template.Spec }),
		column("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"], 1,
			func(c *batchv1.CronJob) any { return metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector) }))...),
	Sub: []Subresource[*batchv1.CronJob]{
		statusOf(func(c, old *batchv1.CronJob) { c.Spec = old.Spec }, nil),
	},
}
