"""Fitted models as arrays: what is saved, loaded and run, with numpy alone."""

from dovetail.predictors.forms.form import Form

__all__ = ["Form"]
