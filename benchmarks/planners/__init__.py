"""Quality of planners: tasks that get done although the model is sometimes wrong."""
