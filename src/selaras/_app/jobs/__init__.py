"""Handles of jobs: tasks, calls, where they go, how they are waited for."""
