package registry

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var jobs = &Kind[*batchv1.Job]{
	GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("Job"),
	Plural:           "jobs",
	RecheckName:      true,
	Categories:       []string{"all"},
	Propagation:      metav1.DeletePropagationOrphan,

	Incomplete: true, // labels, those of the template
	Default: func(j *batchv1.Job) {
		if l := j.Spec.Template.Labels; l != nil && len(j.Labels) == 0 {
			j.Labels = maps.Clone(l)
		}
		s := &j.Spec
		if s.Completions == nil && s.Parallelism == nil {
			s.Completions = new(int32(1))
		}
		fillPtr(&s.Parallelism, 1)
		if s.BackoffLimitPerIndex != nil {
			fillPtr(&s.BackoffLimit, math.MaxInt32)
		}
		fillPtr(&s.BackoffLimit, 6)
		fillPtr(&s.CompletionMode, batchv1.NonIndexedCompletion)
		fillPtr(&s.Suspend, false)
		if s.PodFailurePolicy != nil {
			fillPtr(&s.PodReplacementPolicy, batchv1.Failed)
		}
		fillPtr(&s.PodReplacementPolicy, batchv1.TerminatingOrFailed)
		fillPtr(&s.ManualSelector, false)
		defaultJobSpec(s)
	},
	// the name and UID must be known: the selector is made of the UID
	Prepare: func(ctx context.Context, j, old *batchv1.Job) {
		if old == nil && !deref(j.Spec.ManualSelector, false) {
			defaulted := len(j.Labels) == 0 || maps.Equal(j.Labels, j.Spec.Template.Labels)
			selectByUID(j)
			if defaulted { // labels that are the template's stay so
				j.Labels = maps.Clone(j.Spec.Template.Labels)
			}
		}
		prepareJob(ctx, j, old)
	},
	Pods:     func(o *batchv1.Job) *corev1.PodSpec { return &o.Spec.Template.Spec },
	Validate: validateJob,
	Warn: func(_ context.Context, j, old *batchv1.Job) []string {
		warnings := warnJobSpec(&j.Spec, field.NewPath("spec"))
		if old == nil {
			return append(warnPodName(j.Name), warnings...)
		}
		return warnings
	},
	Fields: func(j *batchv1.Job) fields.Set {
		return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
	},
	Columns: append([]Column[*batchv1.Job]{
		nameColumn[*batchv1.Job](),
		column("Status", "string", "Status of the job.", 0, func(j *batchv1.Job) any { return jobState(j) }),
		column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"], 0,
			func(j *batchv1.Job) any { return completions(j) }),
		column("Duration", "string", "Time required to complete the job.", 0, func(j *batchv1.Job) any {
			switch {
			case j.Status.StartTime == nil:
				return ""
			case j.Status.CompletionTime == nil:
				return duration.HumanDuration(time.Since(j.Status.StartTime.Time))
			}
			return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
		}),
		ageColumn[*batchv1.Job](),
	}, append(templateColumns(func(j *batchv1.Job) *corev1.PodSpec { return &j.Spec.Template.Spec }),
		column("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"], 1,
			func(j *batchv1.Job) any { return metav1.FormatLabelSelector(j.Spec.Selector) }))...),
	Sub: []Subresource[*batchv1.Job]{
		statusOf(func(j, old *batchv1.Job) { j.Spec = old.Spec }, validateJobStatus),
	},
}

var prepareJob = spec(
	func(j *batchv1.Job) { j.Status = batchv1.JobStatus{} },
	func(j, old *batchv1.Job) { j.Status = old.Status },
	func(j, old *batchv1.Job) bool { return !same(j.Spec, old.Spec) })

func defaultJobSpec(s *batchv1.JobSpec) {
	if s.PodFailurePolicy != nil {
		for i := range s.PodFailurePolicy.Rules {
			for j := range s.PodFailurePolicy.Rules[i].OnPodConditions {
				fill(&s.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
			}
		}
	}
	defaultTemplate(&s.Template)
}

const (
	oldJobName = "job-name"
	oldJobUID  = "controller-uid"
)

// selectByUID labels the pods with the job's name and UID, under the old keys
// too, and selects them by the UID.
func selectByUID(j *batchv1.Job) {
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for key, value := range map[string]string{
		oldJobName: j.Name, batchv1.JobNameLabel: j.Name,
		oldJobUID: string(j.UID), batchv1.ControllerUidLabel: string(j.UID),
	} {
		if _, ok := j.Spec.Template.Labels[key]; !ok {
			j.Spec.Template.Labels[key] = value
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, ok := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

func jobState(j *batchv1.Job) string {
	is := func(typ batchv1.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == typ {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}
	switch {
	case is(batchv1.JobComplete):
		return "Complete"
	case is(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case is(batchv1.JobSuspended):
		return "Suspended"
	case is(batchv1.JobFailureTarget):
		return "FailureTarget"
	case is(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func completions(j *batchv1.Job) string {
	switch parallel := deref(j.Spec.Parallelism, 0); {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallel > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallel)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}
